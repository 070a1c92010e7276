// What a layer does around its memory at one token: norms, short convolution, gates.
// projections.py, gates.py
#pragma once

// A tensor [n], of which Python hands over two numbers.
template <class T> static const T *vector_of(Arguments &a) {
    const T *p = (const T *)a.next[0];
    a.next += 2;
    return p;
}

template <class T> INLINE T squares(long n, const T *x) { return dot<T>(n, x, x); }

// x / sqrt(mean(x^2) + eps) * weight
template <class T> static void rms_norm(Arguments a) {
    long n = a.size();
    T eps = a.number();
    auto x = a.tensor<const T>();
    auto y = a.tensor<T>();
    const T *weight = vector_of<T>(a);
#pragma omp parallel for num_threads(a.threads) if (a.rows * n > 16384)
    for (long g = 0; g < a.rows; g++) {
        const T *in = &x.at(g)(0, 0);
        T *out = &y.at(g)(0, 0), scale = 1 / std::sqrt(squares<T>(n, in) / n + eps);
        ALONG(i, n) {
            long left = n - i;
            store<T>(out + i, load<T>(in + i, left) * scale * load<T>(weight + i, left), left);
        }
    }
}
KERNEL(rms_norm)

// y_t = sum_j taps_j x_{t-j} of q, k and v, every head of length one; the inputs move up in `last`.
template <class T> static void mixed_token(Arguments a) {
    long dim = a.size(), d = a.size();
    Tensor<const T> parts[3] = {a.tensor<const T>(), a.tensor<const T>(), a.tensor<const T>()};
    auto older = a.tensor<const T>(), taps = a.tensor<const T>();
    auto last = a.tensor<T>(), y = a.tensor<T>();
    for (long g = 0; g < a.rows; g++)
        for (long part = 0; part < 3; part++) {
            const T *x = &parts[part].at(g)(0, 0), *rows[3];
            T *moved[3], *out = &y.at(g)(0, part * dim);
            for (long r = 0; r < 3; r++) {
                rows[r] = &older.at(g)(r, part * dim);
                moved[r] = &last.at(g)(r, part * dim);
            }
            for (long i = 0; i < dim; i++) {
                const T *w = &taps.at(0)(part * dim + i, 0);
                out[i] = w[3] * rows[0][i] + w[2] * rows[1][i] + w[1] * rows[2][i] + w[0] * x[i];
                moved[0][i] = rows[1][i], moved[1][i] = rows[2][i], moved[2][i] = x[i];
            }
            for (long i = 0; i < dim; i += d) {
                T length = std::sqrt(squares<T>(d, out + i) + T(1e-6));  // hypot(|y|, 1e-3)
                scaled<T>(d, 1 / length, out + i, out + i);
            }
        }
}
KERNEL(mixed_token)

template <class T> INLINE T opened(T x) { return 1 / (1 + std::exp(-x)); }

// Gates in the place of their logits, in the order of `_widths`.
template <class T> static void gates_token(Arguments a) {
    long h = a.size(), alpha = a.size(), theta = a.size(), window = a.size(), hidden = a.size();
    long heavy = a.size();
    T largest = a.number();
    auto logits = a.tensor<T>(), bound = a.tensor<const T>();
    for (long g = 0; g < a.rows; g++)
        for (long head = 0; head < h; head++) {
            T *x = &logits.at(g)(0, 0), steps = 1;
            T *eta = x + head, *next = x + h;
            *eta = opened(*eta) * (bound ? bound.at(0)(0, head) : T(1));
            if (alpha) next[head] = opened(next[head]), next += h;
            if (theta) {
                next[head] = T(0.9) * opened(next[head]);
                if (heavy) steps = 1 - next[head];
                next += h;
            }
            if (window > 1) {
                T looked = 1, *gamma = next + head * window;
                for (long j = 0; j < window; j++) {
                    gamma[j] = opened(gamma[j]);
                    if (j) looked += gamma[j];
                }
                steps /= looked;
                next += h * window;
            }
            *eta *= steps;
            if (hidden) next[head] = largest * opened(next[head]) * steps;
        }
}
KERNEL(gates_token)
