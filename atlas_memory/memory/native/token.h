// One token of a memory with exact output: its window's pairs, every step, and the answer.
// online_token.py, feature_maps.py
#pragma once

// A tensor [b, h, rows, columns], of which Python hands over five numbers.
template <class T> struct Heads {
    T *p;
    long b, h, row, column;
    explicit Heads(Arguments &a)
        : p((T *)a.next[0]), b(a.next[1]), h(a.next[2]), row(a.next[3]), column(a.next[4]) {
        a.next += 5;
    }
    Matrix<T> at(long i, long j) const { return {p + i * b + j * h, row, column}; }
};

// ---- products of a matrix with few rows ----------------------------------------------------------

// The sums of L vectors, which are lost.
template <class T> INLINE Vector<T> sums(Vector<T> *parts) {
    turn<T>(parts);
    Vector<T> s = parts[0];
#pragma GCC unroll 16
    for (long i = 1; i < LANES<T>; i++) s += parts[i];
    return s;
}

// row(i, count) gives L parts of a number for each of n rows; the numbers go to out.
template <class T, class Row> INLINE void by_rows(long n, T *out, Row row) {
    constexpr long L = LANES<T>;
    for (long i = 0; i < n; i += L) {
        Vector<T> parts[L] = {};
        for (long r = 0; r < L && i + r < n; r++) parts[r] = row(i + r);
        store<T>(out + i, sums<T>(parts), n - i);
    }
}

// part(p, count) for every vector of n numbers: all but the last are whole, which it can see.
template <class T, class Part> INLINE void by_vectors(long n, Part part) {
    long p = 0;
    for (; p + LANES<T> <= n; p += LANES<T>) part(p, LANES<T>);
    if (p < n) part(p, n - p);
}

// out[i] = A_i . x
template <class T>
static void applied(long n, long k, Matrix<const T> A, const T *x, T *out) {
    by_rows<T>(n, out, [&](long i) __attribute__((always_inline)) {
        const T *row = &A(i, 0);
        Vector<T> s = {};
        by_vectors<T>(k, [&](long p, long left) __attribute__((always_inline)) {
            s += load<T>(row + p, left) * load<T>(x + p, left);
        });
        return s;
    });
}

// out = e A
template <class T>
static void passed(long n, long k, Matrix<const T> A, const T *e, T *out) {
    for (long i = 0; i < n; i++) scaled<T>(k, e[i], &A(i, 0), out, i);
}

// ---- the token -----------------------------------------------------------------------------------

constexpr long HEAVY = 1, ORTHOGONAL = 2;  // what R is: the steps taken, or what Muon is given

struct TokenSizes {
    long heads, c, dk, D, hidden, dv, degree, residual, forgets, optimizer, opens;
    explicit TokenSizes(Arguments &a)
        : heads(a.size()), c(a.size()), dk(a.size()), D(a.size()), hidden(a.size()), dv(a.size()),
          degree(a.size()), residual(a.size()), forgets(a.size()), optimizer(a.size()),
          opens(a.size()) {}
};

// Powers of every coordinate, or features as they are given (degree 0).
template <class T>
static void features(const TokenSizes &of, const T *x, const T *scales, T *phi) {
    if (!of.degree) return (void)memcpy(phi, x, of.D * sizeof(T));
    for (long p = 0; p < of.dk; p++) {
        T power = x[p];
        for (long i = 0; i < of.degree; i++, power *= x[p]) phi[i * of.dk + p] = power * scales[i];
    }
}

template <class T> struct TokenGates {
    T alpha, eta, theta, mu;
    const T *weight;  // of the window's pairs, oldest first
};

// sum_j shares_j X_j, a vector of it.
template <class T>
INLINE Vector<T> summed(long c, const T *shares, const T *X, long row, long left) {
    Vector<T> s = shares[0] * load<T>(X, left);
    for (long j = 1; j < c; j++) s += shares[j] * load<T>(X + j * row, left);
    return s;
}

// What is carried of the hidden matrix: as torch.lerp, which is H bit for bit where alpha is 1.
template <class T> struct Kept {
    Matrix<const T> near, far;
    T share;
    Kept(T alpha, Matrix<const T> first, Matrix<const T> H)
        : near(alpha < T(0.5) ? first : H), far(alpha < T(0.5) ? H : first),
          share(alpha < T(0.5) ? alpha : 1 - alpha) {}
};

// The hidden matrix and its momentum behind the step, and z = H phi(q).
template <class T, long OPTIMIZER>
static void move_hidden(const TokenSizes &of, TokenGates<T> gate, Kept<T> kept, Matrix<const T> R,
                        Matrix<const T> d, Matrix<const T> phi, Matrix<T> to_H, Matrix<T> to_R,
                        T *shares, T *z) {
    const long c = of.c, D = of.D;
    const T *X = phi.p, *asked = &phi(c, 0), mu = OPTIMIZER == ORTHOGONAL ? 1 : gate.mu;
    by_rows<T>(of.hidden, z, [&](long i) __attribute__((always_inline)) {
        const T *near = &kept.near(i, 0), *far = &kept.far(i, 0), *old = &R(i, 0);
        T *now = &to_H(i, 0), *moved = &to_R(i, 0);
        for (long j = 0; j < c; j++) shares[j] = mu * gate.weight[j] * d(j, i);
        Vector<T> found = {};
        by_vectors<T>(D, [&](long p, long left) __attribute__((always_inline)) {
            Vector<T> w = load<T>(near + p, left), step = summed<T>(c, shares, X + p, D, left);
            w += kept.share * (load<T>(far + p, left) - w);
            if (OPTIMIZER) {
                step += gate.theta * load<T>(old + p, left);
                store<T>(moved + p, step, left);
            }
            if (OPTIMIZER != ORTHOGONAL) w += step;
            store<T>(now + p, w, left);
            found += w * load<T>(asked + p, left);
        });
        return found;
    });
}

// The output matrix and its momentum behind the step, and y = W h(q).
template <class T, long OPTIMIZER>
static void move_output(const TokenSizes &of, TokenGates<T> gate, Matrix<const T> W,
                        Matrix<const T> S, Matrix<const T> e, Matrix<const T> h, Matrix<T> to_W,
                        Matrix<T> to_S, T *shares, T *y) {
    const long c = of.c, n = of.hidden;
    const T *X = h.p, *asked = &h(c, 0);
    by_rows<T>(of.dv, y, [&](long i) __attribute__((always_inline)) {
        const T *before = &W(i, 0), *old = &S(i, 0);
        T *now = &to_W(i, 0), *moved = &to_S(i, 0);
        for (long j = 0; j < c; j++) shares[j] = gate.eta * gate.weight[j] * e(j, i);
        Vector<T> found = {};
        by_vectors<T>(n, [&](long p, long left) __attribute__((always_inline)) {
            Vector<T> step = summed<T>(c, shares, X + p, n, left);
            if (OPTIMIZER == HEAVY) {
                step += gate.theta * load<T>(old + p, left);
                store<T>(moved + p, step, left);
            }
            Vector<T> w = gate.alpha * load<T>(before + p, left) + step;
            store<T>(now + p, w, left);
            found += w * load<T>(asked + p, left);
        });
        return found;
    });
}

// What Python hands over, in its order.
template <class T> struct TokenOf {
    Arguments a;
    TokenSizes of;
    Tensor<const T> alpha, eta, theta, mu, scales, opens;
    Heads<const T> gamma, keys, values, q, x, asked, W, S, start, H, R, first, recent;
    Heads<T> y, to_W, to_S, to_H, to_R, to_recent;
    explicit TokenOf(Arguments given)
        : a(given), of(a), alpha(next()), eta(next()), theta(next()), mu(next()), scales(next()),
          opens(next()), gamma(a), keys(a), values(a), q(a), x(a), asked(a), W(a), S(a), start(a),
          H(a), R(a), first(a), recent(a), y(a), to_W(a), to_S(a), to_H(a), to_R(a),
          to_recent(a) {}
    Tensor<const T> next() { return a.tensor<const T>(); }

    template <long OPTIMIZER> void read(long b, long g) const {
        long n = of.hidden, c = of.c;
        Room room;
        auto phi = room.matrix<T>(c + 1, of.D), h = room.matrix<T>(c + 1, n);
        auto d = room.matrix<T>(c, n), e = room.matrix<T>(c, of.dv);
        T *weight = room.numbers<T>(c), *z = room.numbers<T>(n), *found = room.numbers<T>(of.dv);
        T *dh = room.numbers<T>(n), *shares = room.numbers<T>(c);
        TokenGates<T> gate = {of.forgets ? alpha.at(b)(g, 0) : 1, eta.at(b)(g, 0),
                              theta.at(b)(g, 0), mu.at(b)(g, 0), weight};
        bool anew = opens ? opens.at(b)(0, 0) != 0 : of.opens;
        for (long j = 0; j < c; j++) {
            weight[j] = gamma.at(b, g)(0, c - 1 - j);
            features<T>(of, &x.at(b, g)(j, 0), &scales.at(0)(g, 0), &phi(j, 0));
            applied<T>(n, of.D, start.at(b, g), &phi(j, 0), z);
            T length = unit<T>(n, z, &h(j, 0));
            applied<T>(of.dv, n, W.at(b, g), &h(j, 0), found);
            bool newest = j == c - 1;
            if (newest || anew) {
                // d of an older pair is that of the chunk's start, before anything is forgotten
                T kept = newest ? gate.alpha : 1;
                error(b, g, j, kept, found, &e(j, 0));
                passed<T>(of.dv, n, W.at(b, g), &e(j, 0), dh);
                scaled<T>(n, kept, dh, dh);
                taught<T>(n, dh, &h(j, 0), length, z, &d(j, 0));
            } else {
                memcpy(&d(j, 0), &recent.at(b, g)(j, 0), n * sizeof(T));
            }
            error(b, g, j, gate.alpha, found, &e(j, 0));
            if (j) memcpy(&to_recent.at(b, g)(j - 1, 0), &d(j, 0), n * sizeof(T));
        }
        features<T>(of, &asked.at(b, g)(0, 0), &scales.at(0)(g, 0), &phi(c, 0));
        auto before = H.at(b, g);
        Kept<T> kept(gate.alpha, of.forgets ? first.at(b, g) : before, before);
        move_hidden<T, OPTIMIZER>(of, gate, kept, R.at(b, g), fixed(d), fixed(phi), to_H.at(b, g),
                                  to_R.at(b, g), shares, z);
        unit<T>(n, z, &h(c, 0));
        move_output<T, OPTIMIZER>(of, gate, W.at(b, g), S.at(b, g), fixed(e), fixed(h),
                                  to_W.at(b, g), to_S.at(b, g), shares, found);
        for (long i = 0; i < of.dv; i++)
            y.at(b, g)(0, i) = found[i] + (of.residual ? q.at(b, g)(0, i) : T(0));
    }

    // e = v - r(k) - kept W h
    void error(long b, long g, long j, T kept, const T *found, T *e) const {
        const T *v = &values.at(b, g)(j, 0), *k = &keys.at(b, g)(j, 0);
        for (long i = 0; i < of.dv; i++) e[i] = v[i] - (of.residual ? k[i] : T(0)) - kept * found[i];
    }
};

template <class T, long OPTIMIZER> static void read_rows(const TokenOf<T> &token) {
    long heads = token.of.heads, items = token.a.rows * heads;
#pragma omp parallel for num_threads(token.a.threads)
    for (long item = 0; item < items; item++)
        token.template read<OPTIMIZER>(item / heads, item % heads);
}

template <class T> static void token(Arguments a) {
    TokenOf<T> token(a);
    if (token.of.optimizer == HEAVY) return read_rows<T, HEAVY>(token);
    if (token.of.optimizer == ORTHOGONAL) return read_rows<T, ORTHOGONAL>(token);
    read_rows<T, 0>(token);
}
KERNEL(token)
