// Newton-Schulz, of the matrix itself and by its Gram matrix.   optimizers.py
//
// Its factors are never rounded: a step is a + bA + cA^2, of which a would swallow what is small.
#pragma once

// o = p x + q y, of square matrices
template <class T>
static void mixed(long m, T p, Matrix<const T> x, T q, Matrix<const T> y, Matrix<T> o) {
    for (long i = 0; i < m; i++) blended<T>(m, p, &x(i, 0), q, &y(i, 0), &o(i, 0));
}

// o = p (x + x^T) + q y, square by square of vectors; y, symmetric, may be absent.
template <class T>
static void both_halves(long m, T p, Matrix<const T> x, Matrix<T> o, T q = 0,
                        Matrix<const T> y = {}) {
    constexpr long L = LANES<T>;
    long whole = m / L * L;
    for (long i = 0; i < whole; i += L)
        for (long j = 0; j <= i; j += L) {
            Vector<T> r[L], across[L];
#pragma GCC unroll 16
            for (long l = 0; l < L; l++) across[l] = load<T>(&x(j + l, 0) + i);
            turn<T>(across);
#pragma GCC unroll 16
            for (long l = 0; l < L; l++) {
                r[l] = p * (load<T>(&x(i + l, 0) + j) + across[l]);
                if (y.p) r[l] += q * load<T>(&y(i + l, 0) + j);
                store<T>(&o(i + l, 0) + j, r[l]);
            }
            if (i == j) continue;
            turn<T>(r);
#pragma GCC unroll 16
            for (long l = 0; l < L; l++) store<T>(&o(j + l, 0) + i, r[l]);
        }
    for (long i = whole; i < m; i++)
        for (long j = 0; j <= i; j++)
            o(i, j) = o(j, i) = p * (x(i, j) + x(j, i)) + (y.p ? q * y(i, j) : T(0));
}

// y = K s, or y + K s, K symmetric; numbers of a row or of a column of y lie side by side.
template <class T>
static void onto(long m, long n, Matrix<const T> K, Matrix<const T> s, Matrix<T> y,
                 bool add = false) {
    if (y.column == 1)
        product<T>(m, n, m, K, s, y, add);
    else
        product<T>(n, m, m, s.turned(), K, y.turned(), add);
}

// What an iteration leaves behind: A, R = a + bA + cA^2, Q before it and AR.
template <class T> struct Iterations {
    Matrix<T> kept;
    long m;
    Matrix<T> A(long i) const { return kept.from(4 * i * m); }
    Matrix<T> R(long i) const { return kept.from((4 * i + 1) * m); }
    Matrix<T> AR(long i) const { return kept.from((4 * i + 2) * m); }
    Matrix<T> Q(long i) const { return kept.from((i == 1 ? 1 : 4 * i - 1) * m); }  // the first is R
};

struct Polynomial {
    long steps;
    double a, b, c;
    explicit Polynomial(Arguments &from)
        : steps(from.size()), a(from.number()), b(from.number()), c(from.number()) {}
};

// o = R Q, or turned: Q R. Where S is next to nothing Q is some hundreds: what it makes of S stays
// exact as long as every factor comes in from the side away from S, and no half is mirrored.
template <class T>
static void upon(bool turned, long m, Matrix<const T> R, Matrix<const T> Q, Matrix<T> o,
                 bool add = false) {
    product<T>(m, m, m, turned ? Q : R, turned ? R : Q, o, add);
}

// Q <- RQ, A <- RAR; K [m, m], which turns S into NS(S), and the length of S. S [m, n], m <= n.
// turned: for an answer whose columns lie side by side, see `onto`.
template <class T>
static T by_gram(const Polynomial &of, long m, long n, Matrix<const T> s, bool turned, Matrix<T> K,
                 const Iterations<T> &it) {
    Rounding exact(false);
    product<T>(m, m, n, s, s.turned(), it.A(0));
    T squares = 0;
    for (long i = 0; i < m; i++) squares += it.A(0)(i, i);
    T found = std::sqrt(squares), size = found + T(SMALLEST);
    weigh<T>(m, m, 1 / (size * size), fixed(it.A(0)), it.A(0));
    for (long i = 0; i < of.steps; i++) {
        auto A = fixed(it.A(i)), R = fixed(it.R(i));
        product<T>(m, m, m, A, A, it.R(i));
        mixed<T>(m, of.b, A, of.c, R, it.R(i));
        for (long j = 0; j < m; j++) it.R(i)(j, j) += of.a;
        if (i) upon<T>(turned, m, R, fixed(it.Q(i)), it.Q(i + 1));
        if (i + 1 == of.steps) break;
        product<T>(m, m, m, A, R, it.AR(i));
        product<T>(m, m, m, R, fixed(it.AR(i)), it.A(i + 1));
    }
    weigh<T>(m, m, 1 / size, fixed(it.Q(of.steps)), K);
    return found;
}

template <class T> static void orthogonal_forward(Arguments a) {
    long m = a.size(), n = a.size();
    Polynomial of(a);
    auto S = a.tensor<const T>(), Y = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        auto kept = room.matrix<T>(4 * of.steps * m, m), K = room.matrix<T>(m, m);
        by_gram<T>(of, m, n, S.at(g), Y.at(g).column != 1, K, {kept, m});
        onto<T>(m, n, fixed(K), S.at(g), Y.at(g));
    }
}
KERNEL(orthogonal_forward)

// dS of `by_gram`. Q is a polynomial of the symmetric A, whose derivative is its own adjoint: what a
// change of Q asks of A is what the same change of A would do to Q, iteration by iteration. These
// are made again: what they would be kept in is slower than the products.
template <class T>
static void by_gram_back(const Polynomial &of, long m, long n, Matrix<const T> dy, Matrix<const T> s,
                         Matrix<T> ds) {
    Rounding exact(false);
    Room room;
    long steps = of.steps;
    bool turned = ds.column != 1;
    auto kept = room.matrix<T>(4 * steps * m, m), K = room.matrix<T>(m, m);
    T found = by_gram<T>(of, m, n, s, turned, K, {kept, m}), size = found + T(SMALLEST);
    Iterations<const T> it = {fixed(kept), m};
    auto dA = room.matrix<T>(m, m), dQ = room.matrix<T>(m, m), dR = room.matrix<T>(m, m);
    auto made = room.matrix<T>(m, m), next = room.matrix<T>(m, m);
    product<T>(m, m, n, dy, s.turned(), made);
    both_halves<T>(m, T(0.5) / size, fixed(made), dA);
    T d_size = 0;
    for (long i = 0; i < m; i++) d_size -= dot<T>(m, &dA(i, 0), &K(i, 0));
    for (long i = 0; i < steps; i++) {
        auto A = it.A(i), R = it.R(i);
        product<T>(m, m, m, A, fixed(dA), made);
        both_halves<T>(m, of.c, fixed(made), dR, of.b, fixed(dA));
        if (i) {
            upon<T>(turned, m, R, fixed(dQ), next);
            upon<T>(turned, m, fixed(dR), it.Q(i), next, true);
            std::swap(next, dQ);
        } else {
            weigh<T>(m, m, 1, fixed(dR), dQ);
        }
        if (i + 1 == steps) break;
        product<T>(m, m, m, fixed(dR), it.AR(i), made);
        product<T>(m, m, m, R, fixed(dA), next);
        both_halves<T>(m, 1, fixed(made), dA);
        product<T>(m, m, m, fixed(next), R, dA, true);
    }
    for (long i = 0; i < m; i++) d_size -= 2 / size * dot<T>(m, &dQ(i, 0), &it.A(0)(i, 0));
    weigh<T>(m, m, 2 / (size * size), fixed(dQ), dQ);
    for (long i = 0; i < m; i++) dQ(i, i) += found > 0 ? d_size / found : T(0);
    onto<T>(m, n, fixed(K), dy, ds);
    onto<T>(m, n, fixed(dQ), s, ds, true);
}

template <class T> static void orthogonal_backward(Arguments a) {
    long m = a.size(), n = a.size();
    Polynomial of(a);
    auto dY = a.tensor<const T>(), S = a.tensor<const T>();
    auto dS = a.tensor<T>();
    ALL_ROWS(a) by_gram_back<T>(of, m, n, dY.at(g), S.at(g), dS.at(g));
}
KERNEL(orthogonal_backward)

// What an iteration of the matrix itself leaves behind: X before it, A = XX^T and R.
template <class T> struct Direct {
    Matrix<const T> first;
    Matrix<T> later, kept;
    long m;
    Matrix<const T> X(long i) const { return i ? fixed(later.from((i - 1) * m)) : first; }
    Matrix<T> A(long i) const { return kept.from(2 * i * m); }
    Matrix<T> R(long i) const { return kept.from((2 * i + 1) * m); }
};

// X <- RX, R = a + bA + cA^2, A = XX^T. X [m, n], m <= n, one step at least. y may be absent.
template <class T>
static void by_itself(const Polynomial &of, long m, long n, const Direct<T> &it, Matrix<T> y) {
    Rounding exact(false);
    for (long i = 0; i < of.steps; i++) {
        auto x = it.X(i);
        product<T>(m, m, n, x, x.turned(), it.A(i));
        product<T>(m, m, m, fixed(it.A(i)), fixed(it.A(i)), it.R(i));
        mixed<T>(m, of.b, fixed(it.A(i)), of.c, fixed(it.R(i)), it.R(i));
        for (long j = 0; j < m; j++) it.R(i)(j, j) += of.a;
        auto next = i + 1 < of.steps ? it.later.from(i * m) : y;
        if (next.p) onto<T>(m, n, fixed(it.R(i)), x, next);
    }
}

template <class T> static void direct_forward(Arguments a) {
    long m = a.size(), n = a.size();
    Polynomial of(a);
    auto X = a.tensor<const T>(), Y = a.tensor<T>(), later = a.tensor<T>(), kept = a.tensor<T>();
    ALL_ROWS(a) by_itself<T>(of, m, n, {X.at(g), later.at(g), kept.at(g), m}, Y.at(g));
}
KERNEL(direct_forward)

// With D = dX X^T and its transpose: dX <- R dX + (bD + c(DA + AD)) X.
template <class T>
static void by_itself_back(const Polynomial &of, long m, long n, Matrix<const T> dy,
                           const Direct<T> &it, Matrix<T> dx) {
    Rounding exact(false);
    Room room;
    auto D = room.matrix<T>(m, m), DA = room.matrix<T>(m, m), made = room.matrix<T>(m, m);
    auto next = room.matrix<T>(m, n), other = room.matrix<T>(m, n);
    for (long i = of.steps - 1; i >= 0; i--) {
        auto x = it.X(i);
        auto out = i ? next : dx;
        product<T>(m, m, n, dy, x.turned(), made);
        both_halves<T>(m, 1, fixed(made), D);
        product<T>(m, m, m, fixed(D), fixed(it.A(i)), made);
        both_halves<T>(m, of.c, fixed(made), DA, of.b, fixed(D));
        onto<T>(m, n, fixed(it.R(i)), dy, out);
        onto<T>(m, n, fixed(DA), x, out, true);
        dy = fixed(out);
        std::swap(next, other);
    }
}

template <class T> static void direct_backward(Arguments a) {
    long m = a.size(), n = a.size();
    Polynomial of(a);
    auto dY = a.tensor<const T>(), X = a.tensor<const T>();
    auto later = a.tensor<T>(), kept = a.tensor<T>(), dX = a.tensor<T>();
    ALL_ROWS(a) by_itself_back<T>(of, m, n, dY.at(g), {X.at(g), later.at(g), kept.at(g), m},
                                  dX.at(g));
}
KERNEL(direct_backward)

// ---- of S [m, n], either of which may be the longer one ------------------------------------------

// A matrix whose rows lie side by side: itself, or turned. [rows, columns] are its own.
template <class T> struct Laid {
    bool turned;
    long rows, columns;
    Laid(long m, long n, Matrix<const T> like)
        : turned(like.column != 1), rows(turned ? n : m), columns(turned ? m : n) {}
    template <class U> Matrix<U> operator()(Matrix<U> x) const { return turned ? x.turned() : x; }
    Matrix<T> like(Room &room) const {
        auto x = room.matrix<T>(rows, columns);
        return turned ? x.turned() : x;
    }
};

// X = S / (|S| + smallest), its iterations, and |S|.
template <class T> struct Started {
    Laid<T> laid;
    Matrix<T> X;
    Direct<T> it;
    T length;
    Started(Room &room, const Polynomial &of, long m, long n, Matrix<const T> s)
        : laid(m, n, s), X(laid.like(room)), it{fixed(X), room.matrix<T>(of.steps * m, n),
                                                room.matrix<T>(2 * of.steps * m, m), m} {
        T squares = 0;
        for (long i = 0; i < laid.rows; i++) {
            const T *row = &laid(s)(i, 0);
            squares += dot<T>(laid.columns, row, row);
        }
        length = std::sqrt(squares);
        weigh<T>(laid.rows, laid.columns, share(), laid(s), laid(X));
    }
    T share() const { return 1 / (length + T(SMALLEST)); }
};

static bool is_long(const Polynomial &of, long m, long n) { return of.steps && n > 2 * m; }

// left: takes what `again` makes y of, K or y itself, if it is asked for.
template <class T>
static void newton_schulz(const Polynomial &of, long m, long n, Matrix<const T> s, Matrix<T> y,
                          T *left = nullptr) {
    if (m > n) return newton_schulz<T>(of, n, m, s.turned(), y.turned(), left);
    Room room;
    if (is_long(of, m, n)) {
        auto kept = room.matrix<T>(4 * of.steps * m, m), K = room.matrix<T>(m, m);
        if (left) K.p = left;
        by_gram<T>(of, m, n, s, y.column != 1, K, {kept, m});
        return onto<T>(m, n, fixed(K), s, y);
    }
    Started<T> a(room, of, m, n, s);
    const Laid<T> &laid = a.laid;
    if (of.steps)
        by_itself<T>(of, m, n, a.it, y);
    else
        weigh<T>(laid.rows, laid.columns, 1, fixed(laid(a.X)), laid(y));
    if (left) weigh<T>(laid.rows, laid.columns, 1, fixed(laid(y)), {left, laid.columns, 1});
}

// y of `newton_schulz` once more; it lies as it lay there.
template <class T>
static void again(const Polynomial &of, long m, long n, Matrix<const T> s, const T *left,
                  Matrix<T> y) {
    if (m > n) return again<T>(of, n, m, s.turned(), left, y.turned());
    if (is_long(of, m, n)) return onto<T>(m, n, {left, m, 1}, s, y);
    Laid<T> laid(m, n, s);
    weigh<T>(laid.rows, laid.columns, 1, {left, laid.columns, 1}, laid(y));
}

// ds of `newton_schulz`, laid down; all matrices lie as s does.
template <class T>
static void newton_schulz_back(const Polynomial &of, long m, long n, Matrix<const T> dy,
                               Matrix<const T> s, Matrix<T> ds) {
    if (m > n) return newton_schulz_back<T>(of, n, m, dy.turned(), s.turned(), ds.turned());
    if (is_long(of, m, n)) return by_gram_back<T>(of, m, n, dy, s, ds);
    Room room;
    Started<T> a(room, of, m, n, s);
    const Laid<T> &laid = a.laid;
    auto dx = laid.like(room);
    if (of.steps) {
        by_itself<T>(of, m, n, a.it, Matrix<T>{});
        by_itself_back<T>(of, m, n, dy, a.it, dx);
    } else {
        weigh<T>(laid.rows, laid.columns, 1, laid(dy), laid(dx));
    }
    T along = 0;
    for (long i = 0; i < laid.rows; i++)
        along += dot<T>(laid.columns, &laid(dx)(i, 0), &laid(a.X)(i, 0));
    T less = a.length > 0 ? along * a.share() / a.length : T(0);
    weigh<T>(laid.rows, laid.columns, a.share(), fixed(laid(dx)), laid(ds));
    for (long i = 0; i < laid.rows; i++)
        scaled<T>(laid.columns, -less, &laid(s)(i, 0), &laid(ds)(i, 0), true);
}
