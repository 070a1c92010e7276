// What exact steps of a block add up to.   linear.py
#pragma once

template <class T> constexpr T VANISHED = sizeof(T) == 4 ? 1.1e-19 : 1.5e-154;  // omega.py

// now [A | C] and before: A [t] = alpha_t .. alpha_0 once for each of dv columns, and
// C [t, (s, j)] = D [t, s] eta_s gamma [s, j], D [t, s] = alpha_t .. alpha_{s+1}. before: what step t
// itself has not added yet, or with `earlier` what stood a token earlier.
struct Blocks {
    long tokens, slots, block, window, dv, earlier;
    explicit Blocks(Arguments &a)
        : tokens(a.size()), slots(a.size()), block(a.size()), window(a.size()), dv(a.size()),
          earlier(a.size()) {}
    long wide() const { return block * window; }
};

// The rows of D for a block that begins at a token, and A; slots behind the text keep all.
template <class T>
static void decays(const Blocks &b, long begin, Matrix<const T> alpha, Matrix<T> D, T *A) {
    T left = 1;
    for (long t = 0; t < b.block; t++) {
        T kept = begin + t < b.tokens ? alpha(begin + t, 0) : T(1);
        T *o = &D(t, 0);
        left *= kept;
        A[t] = left = left < VANISHED<T> ? T(0) : left;
        if (t) {
            const T *last = &D(t - 1, 0);
            for (long s = 0; s < t; s++) {
                T x = last[s] * kept;
                o[s] = x < VANISHED<T> ? T(0) : x;
            }
        }
        o[t] = 1;
        for (long s = t + 1; s < b.block; s++) o[s] = 0;
    }
}

// steps [s, j] = eta_s gamma [s, j]
template <class T>
static void steps_of(const Blocks &b, long begin, Matrix<const T> eta, Matrix<const T> gamma,
                     T *steps) {
    for (long s = 0; s < b.block; s++)
        for (long j = 0; j < b.window; j++)
            steps[s * b.window + j] =
                begin + s < b.tokens ? eta(begin + s, 0) * gamma(begin + s, j) : T(0);
}

// o [s, j] = row [s] for the steps of the first n tokens.
template <class T> static void each(long n, long window, const T *row, T *o) {
    if (window == 2) {
        for (long s = 0; s < n; s++) o[2 * s] = o[2 * s + 1] = row[s];
        return;
    }
    for (long s = 0; s < n; s++)
        for (long j = 0; j < window; j++) o[s * window + j] = row[s];
}

template <class T> static void coefficients_forward(Arguments a) {
    Blocks b(a);
    auto alpha = a.tensor<const T>(), eta = a.tensor<const T>(), gamma = a.tensor<const T>();
    auto now = a.tensor<T>(), before = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto D = room.matrix<T>(b.block, b.block);
        T *A = room.numbers<T>(b.block), *steps = room.numbers<T>(b.wide());
        for (long begin = 0; begin < b.slots; begin += b.block) {
            decays<T>(b, begin, alpha.at(g), D, A);
            steps_of<T>(b, begin, eta.at(g), gamma.at(g), steps);
            for (long t = 0; t < b.block; t++) {
                T *o = &now.at(g)(begin + t, 0), *p = &before.at(g)(begin + t, 0);
                for (long k = 0; k < b.dv; k++) o[k] = A[t];
                T *C = o + b.dv;
                each<T>(t + 1, b.window, &D(t, 0), C);
                times<T>((t + 1) * b.window, C, steps, C);
                clear<T>(b.wide() - (t + 1) * b.window, C + (t + 1) * b.window);
                if (b.earlier) {
                    const T *last = &now.at(g)(begin + t - 1, 0);
                    for (long k = 0; k < b.dv + b.wide(); k++)
                        p[k] = t ? last[k] : T(k < b.dv);
                } else {
                    scaled<T>(b.dv + t * b.window, 1, o, p);
                    clear<T>(b.wide() - t * b.window, p + b.dv + t * b.window);
                }
            }
        }
    }
}
KERNEL(coefficients_forward)

// d_alpha walks back along D [t, s] = alpha_t D [t - 1, s]: no quotient, so alpha may be 0.
template <class T> static void coefficients_backward(Arguments a) {
    Blocks b(a);
    auto d_now = a.tensor<const T>(), d_before = a.tensor<const T>();
    auto alpha = a.tensor<const T>(), eta = a.tensor<const T>(), gamma = a.tensor<const T>();
    auto d_alpha = a.tensor<T>(), d_eta = a.tensor<T>(), d_gamma = a.tensor<T>();
    long c = b.window;
    ALL_ROWS(a) {
        Room room;
        auto D = room.matrix<T>(b.block, b.block);
        T *A = room.numbers<T>(b.block), *steps = room.numbers<T>(b.wide());
        T *asked = room.numbers<T>(b.wide()), *row = room.numbers<T>(b.wide());
        T *d_steps = room.numbers<T>(b.wide()), *dD = room.numbers<T>(b.block);
        for (long begin = 0; begin < b.slots; begin += b.block) {
            decays<T>(b, begin, alpha.at(g), D, A);
            steps_of<T>(b, begin, eta.at(g), gamma.at(g), steps);
            clear<T>(b.wide(), d_steps);
            clear<T>(b.block, dD);
            T dA = 0;
            for (long t = b.block - 1; t >= 0; t--) {
                const T *given = &d_now.at(g)(begin + t, 0);
                const T *later = nullptr;  // what `before` asks of this row of C
                if (!b.earlier)
                    later = &d_before.at(g)(begin + t, 0);
                else if (t + 1 < b.block)
                    later = &d_before.at(g)(begin + t + 1, 0);
                for (long k = 0; k < b.dv; k++) dA += given[k] + (later ? later[k] : T(0));
                scaled<T>((t + 1) * c, 1, given + b.dv, asked);
                if (later) scaled<T>((b.earlier ? t + 1 : t) * c, 1, later + b.dv, asked, true);
                each<T>(t + 1, c, &D(t, 0), row);
                times<T>((t + 1) * c, asked, row, d_steps, true);
                times<T>((t + 1) * c, asked, steps, row);
                for (long j = 0; j < c; j++)
                    for (long s = 0; s <= t; s++) dD[s] += row[s * c + j];
                T kept = begin + t < b.tokens ? alpha.at(g)(begin + t, 0) : T(1);
                T passed = dA * (t ? A[t - 1] : T(1));
                if (t) passed += dot<T>(t, dD, &D(t - 1, 0));
                if (begin + t < b.tokens) d_alpha.at(g)(begin + t, 0) = passed;
                dA *= kept;
                scaled<T>(t, kept, dD, dD);
            }
            for (long s = 0; s < b.block && begin + s < b.tokens; s++) {
                T sum = 0, own = eta.at(g)(begin + s, 0);
                for (long j = 0; j < c; j++) {
                    T d = d_steps[s * c + j];
                    sum += d * gamma.at(g)(begin + s, j);
                    d_gamma.at(g)(begin + s, j) = d * own;
                }
                d_eta.at(g)(begin + s, 0) = sum;
            }
        }
    }
}
KERNEL(coefficients_backward)
