// Sums over the pairs of a chunk.   omega.py
#pragma once

// z_t = A_t W x_t + B_t S x_t + sum_i C[t, i] (X_i . x_t) d_i
template <class T> static void read_forward(Arguments a) {
    long m = a.size(), n = a.size(), into = a.size(), out = a.size();
    auto x = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto W = a.tensor<const T>(), S = a.tensor<const T>(), A = a.tensor<const T>();
    auto B = a.tensor<const T>(), C = a.tensor<const T>();
    auto z = a.tensor<T>(), scores = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto weighted = room.matrix<T>(m, n), kept = room.matrix<T>(m, into);
        product<T>(m, n, into, x.at(g), X.at(g).turned(), scores.at(g));
        for (long t = 0; t < m; t++) {
            times<T>(n, &scores.at(g)(t, 0), &C.at(g)(t, 0), &weighted(t, 0));
            scaled<T>(into, A.at(g)(t, 0), &x.at(g)(t, 0), &kept(t, 0));
        }
        product<T>(m, out, into, fixed(kept), W.at(g).turned(), z.at(g));
        if (S) {
            for (long t = 0; t < m; t++)
                scaled<T>(into, B.at(g)(t, 0), &x.at(g)(t, 0), &kept(t, 0));
            product<T>(m, out, into, fixed(kept), S.at(g).turned(), z.at(g), true);
        }
        product<T>(m, out, n, fixed(weighted), d.at(g), z.at(g), true);
    }
}
KERNEL(read_forward)

// Gradients of W and its scale for z = scale * (W x); adds that of x to dx.
template <class T>
static void carried_backward(long m, long into, long out, Matrix<const T> dz, Matrix<const T> x,
                             Matrix<const T> W, Matrix<const T> scale, Matrix<T> dx, Matrix<T> dW,
                             Matrix<T> d_scale, Matrix<T> passed) {
    product<T>(m, into, out, dz, W, passed);
    for (long t = 0; t < m; t++) {
        d_scale(t, 0) = dot<T>(into, &passed(t, 0), &x(t, 0));
        scaled<T>(into, scale(t, 0), &passed(t, 0), &dx(t, 0), true);
        scaled<T>(into, scale(t, 0), &x(t, 0), &passed(t, 0));
    }
    product<T>(out, into, m, dz.turned(), fixed(passed), dW);
}

template <class T> static void read_backward(Arguments a) {
    long m = a.size(), n = a.size(), into = a.size(), out = a.size();
    auto dz = a.tensor<const T>(), scores = a.tensor<const T>();
    auto x = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto W = a.tensor<const T>(), S = a.tensor<const T>(), A = a.tensor<const T>();
    auto B = a.tensor<const T>(), C = a.tensor<const T>();
    auto dx = a.tensor<T>(), dX = a.tensor<T>(), dd = a.tensor<T>(), dW = a.tensor<T>();
    auto dS = a.tensor<T>(), dA = a.tensor<T>(), dB = a.tensor<T>(), dC = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto weighted = room.matrix<T>(m, n), d_scores = room.matrix<T>(m, n);
        auto passed = room.matrix<T>(m, into);
        product<T>(m, n, out, dz.at(g), d.at(g).turned(), d_scores);
        for (long t = 0; t < m; t++) {
            const T *found = &scores.at(g)(t, 0), *c = &C.at(g)(t, 0);
            times<T>(n, &d_scores(t, 0), found, &dC.at(g)(t, 0));
            times<T>(n, &d_scores(t, 0), c, &d_scores(t, 0));
            times<T>(n, found, c, &weighted(t, 0));
        }
        product<T>(m, into, n, fixed(d_scores), X.at(g), dx.at(g));
        product<T>(n, into, m, fixed(d_scores).turned(), x.at(g), dX.at(g));
        product<T>(n, out, m, fixed(weighted).turned(), dz.at(g), dd.at(g));
        carried_backward<T>(m, into, out, dz.at(g), x.at(g), W.at(g), A.at(g), dx.at(g), dW.at(g),
                            dA.at(g), passed);
        if (S)
            carried_backward<T>(m, into, out, dz.at(g), x.at(g), S.at(g), B.at(g), dx.at(g),
                                dS.at(g), dB.at(g), passed);
    }
}
KERNEL(read_backward)

// carried + sum_i weights_i d_i (x) X_i
template <class T> static void write_forward(Arguments a) {
    long n = a.size(), into = a.size(), out = a.size();
    auto carried = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto weights = a.tensor<const T>();
    auto W = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto weighted = room.matrix<T>(n, out);
        for (long i = 0; i < n; i++)
            scaled<T>(out, weights.at(g)(i, 0), &d.at(g)(i, 0), &weighted(i, 0));
        for (long i = 0; i < out; i++)
            scaled<T>(into, 1, &carried.at(g)(i, 0), &W.at(g)(i, 0));
        product<T>(out, into, n, fixed(weighted).turned(), X.at(g), W.at(g), true);
    }
}
KERNEL(write_forward)

template <class T> static void write_backward(Arguments a) {
    long n = a.size(), into = a.size(), out = a.size();
    auto dW = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto weights = a.tensor<const T>();
    auto dX = a.tensor<T>(), dd = a.tensor<T>(), d_weights = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto weighted = room.matrix<T>(n, out);
        product<T>(n, out, into, X.at(g), dW.at(g).turned(), dd.at(g));
        for (long i = 0; i < n; i++) {
            T w = weights.at(g)(i, 0), *passed = &dd.at(g)(i, 0);
            const T *own = &d.at(g)(i, 0);
            d_weights.at(g)(i, 0) = dot<T>(out, passed, own);
            scaled<T>(out, w, passed, passed);
            scaled<T>(out, w, own, &weighted(i, 0));
        }
        product<T>(n, into, out, fixed(weighted), dW.at(g), dX.at(g));
    }
}
KERNEL(write_backward)
