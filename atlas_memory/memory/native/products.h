// bmm and baddbmm.   products.py
#pragma once

// out = a b, or in the place of out: out + a b. Few rows of tensors are cut into rows of matrices.
template <class T> static void bmm(Arguments a) {
    long m = a.size(), n = a.size(), k = a.size(), add = a.size();
    auto left = a.tensor<const T>(), right = a.tensor<const T>();
    auto out = a.tensor<T>();
    long cuts = a.rows >= a.threads || m < 4 * ROWS ? 1 : a.threads;
#pragma omp parallel for num_threads(a.threads)
    for (long item = 0; item < a.rows * cuts; item++) {
        Rounding rounding(a.rounded);
        long g = item / cuts, begin = item % cuts * m / cuts, end = (item % cuts + 1) * m / cuts;
        product<T>(end - begin, n, k, left.at(g).from(begin), right.at(g), out.at(g).from(begin),
                   add);
    }
}
KERNEL(bmm)
