// Sums over the pairs of a chunk.   omega.py
#pragma once

// What queries x [m, into] read: pairs (d, X) of n, matrices [out, into], coefficients. S, B may be
// absent. scores [m, n]: <x_t, X_i>.
struct ReadSizes {
    long m, n, into, out;
};
template <class T> struct Asked {
    Matrix<const T> x, X, d, W, S, A, B, C;
    Matrix<T> scores;
};
template <class T> struct AskedGradients {
    Matrix<T> x, X, d, W, S, A, B, C;
};

// z_t = A_t W x_t + B_t S x_t + sum_i C[t, i] (X_i . x_t) d_i
template <class T> static void read(const ReadSizes &s, const Asked<T> &a, Matrix<T> z) {
    Room room;
    auto weighted = room.matrix<T>(s.m, s.n), kept = room.matrix<T>(s.m, s.into);
    product<T>(s.m, s.n, s.into, a.x, a.X.turned(), a.scores);
    for (long t = 0; t < s.m; t++) {
        times<T>(s.n, &a.scores(t, 0), &a.C(t, 0), &weighted(t, 0));
        scaled<T>(s.into, a.A(t, 0), &a.x(t, 0), &kept(t, 0));
    }
    product<T>(s.m, s.out, s.into, fixed(kept), a.W.turned(), z);
    if (a.S.p) {
        for (long t = 0; t < s.m; t++) scaled<T>(s.into, a.B(t, 0), &a.x(t, 0), &kept(t, 0));
        product<T>(s.m, s.out, s.into, fixed(kept), a.S.turned(), z, true);
    }
    product<T>(s.m, s.out, s.n, fixed(weighted), a.d, z, true);
}

template <class T> static void read_forward(Arguments a) {
    ReadSizes s = {a.size(), a.size(), a.size(), a.size()};
    auto x = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto W = a.tensor<const T>(), S = a.tensor<const T>(), A = a.tensor<const T>();
    auto B = a.tensor<const T>(), C = a.tensor<const T>();
    auto z = a.tensor<T>(), scores = a.tensor<T>();
    ALL_ROWS(a) read<T>(s, {x.at(g), X.at(g), d.at(g), W.at(g), S.at(g), A.at(g), B.at(g), C.at(g),
                            scores.at(g)}, z.at(g));
}
KERNEL(read_forward)

// Gradients of W and its scale for z = scale * (W x); adds that of x to dx.
template <class T>
static void carried_backward(const ReadSizes &s, Matrix<const T> dz, Matrix<const T> x,
                             Matrix<const T> W, Matrix<const T> scale, Matrix<T> dx, Matrix<T> dW,
                             Matrix<T> d_scale, bool add) {
    Room room;
    auto passed = room.matrix<T>(s.m, s.into);
    product<T>(s.m, s.into, s.out, dz, W, passed);
    for (long t = 0; t < s.m; t++) {
        T found = dot<T>(s.into, &passed(t, 0), &x(t, 0));
        d_scale(t, 0) = add ? d_scale(t, 0) + found : found;
        scaled<T>(s.into, scale(t, 0), &passed(t, 0), &dx(t, 0), true);
        scaled<T>(s.into, scale(t, 0), &x(t, 0), &passed(t, 0));
    }
    product<T>(s.out, s.into, s.m, dz.turned(), fixed(passed), dW, add);
}

// add: onto gradients that are there, but for that of x.
template <class T>
static void read_back(const ReadSizes &s, const Asked<T> &a, Matrix<const T> dz,
                      const AskedGradients<T> &to, bool add) {
    Room room;
    auto weighted = room.matrix<T>(s.m, s.n), d_scores = room.matrix<T>(s.m, s.n);
    product<T>(s.m, s.n, s.out, dz, a.d.turned(), d_scores);
    for (long t = 0; t < s.m; t++) {
        const T *found = &a.scores(t, 0), *c = &a.C(t, 0);
        times<T>(s.n, &d_scores(t, 0), found, &to.C(t, 0), add);
        times<T>(s.n, &d_scores(t, 0), c, &d_scores(t, 0));
        times<T>(s.n, found, c, &weighted(t, 0));
    }
    product<T>(s.m, s.into, s.n, fixed(d_scores), a.X, to.x);
    product<T>(s.n, s.into, s.m, fixed(d_scores).turned(), a.x, to.X, add);
    product<T>(s.n, s.out, s.m, fixed(weighted).turned(), dz, to.d, add);
    carried_backward<T>(s, dz, a.x, a.W, a.A, to.x, to.W, to.A, add);
    if (a.S.p) carried_backward<T>(s, dz, a.x, a.S, a.B, to.x, to.S, to.B, add);
}

template <class T> static void read_backward(Arguments a) {
    ReadSizes s = {a.size(), a.size(), a.size(), a.size()};
    auto dz = a.tensor<const T>(), scores = a.tensor<const T>();
    auto x = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto W = a.tensor<const T>(), S = a.tensor<const T>(), A = a.tensor<const T>();
    auto B = a.tensor<const T>(), C = a.tensor<const T>();
    auto dx = a.tensor<T>(), dX = a.tensor<T>(), dd = a.tensor<T>(), dW = a.tensor<T>();
    auto dS = a.tensor<T>(), dA = a.tensor<T>(), dB = a.tensor<T>(), dC = a.tensor<T>();
    ALL_ROWS(a) {
        auto found = scores.at(g);
        read_back<T>(s, {x.at(g), X.at(g), d.at(g), W.at(g), S.at(g), A.at(g), B.at(g), C.at(g),
                         {(T *)found.p, found.row, found.column}},
                     dz.at(g), {dx.at(g), dX.at(g), dd.at(g), dW.at(g), dS.at(g), dA.at(g),
                                dB.at(g), dC.at(g)}, false);
    }
}
KERNEL(read_backward)

// o += sum_i weights_i d_i (x) X_i
template <class T>
static void write(long n, long into, long out, const T *weights, long step, Matrix<const T> X,
                  Matrix<const T> d, Matrix<T> o) {
    Room room;
    auto weighted = room.matrix<T>(n, out);
    for (long i = 0; i < n; i++) scaled<T>(out, weights[i * step], &d(i, 0), &weighted(i, 0));
    product<T>(out, into, n, fixed(weighted).turned(), X, o, true);
}

// Gradients of the pairs and their weights, laid down or added.
template <class T>
static void write_back(long n, long into, long out, const T *weights, long step, Matrix<const T> X,
                       Matrix<const T> d, Matrix<const T> dW, Matrix<T> dX, Matrix<T> dd,
                       T *d_weights, long d_step, bool add) {
    Room room;
    auto weighted = room.matrix<T>(n, out), passed = room.matrix<T>(n, out);
    product<T>(n, out, into, X, dW.turned(), passed);
    for (long i = 0; i < n; i++) {
        T w = weights[i * step], &found = d_weights[i * d_step];
        T own = dot<T>(out, &passed(i, 0), &d(i, 0));
        found = add ? found + own : own;
        scaled<T>(out, w, &passed(i, 0), &dd(i, 0), add);
        scaled<T>(out, w, &d(i, 0), &weighted(i, 0));
    }
    product<T>(n, into, out, fixed(weighted), dW, dX, add);
}

// carried + sum_i weights_i d_i (x) X_i
template <class T> static void write_forward(Arguments a) {
    long n = a.size(), into = a.size(), out = a.size();
    auto carried = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto weights = a.tensor<const T>();
    auto W = a.tensor<T>();
    ALL_ROWS(a) {
        auto w = weights.at(g);
        for (long i = 0; i < out; i++)
            scaled<T>(into, 1, &carried.at(g)(i, 0), &W.at(g)(i, 0));
        write<T>(n, into, out, w.p, w.row, X.at(g), d.at(g), W.at(g));
    }
}
KERNEL(write_forward)

template <class T> static void write_backward(Arguments a) {
    long n = a.size(), into = a.size(), out = a.size();
    auto dW = a.tensor<const T>(), X = a.tensor<const T>(), d = a.tensor<const T>();
    auto weights = a.tensor<const T>();
    auto dX = a.tensor<T>(), dd = a.tensor<T>(), d_weights = a.tensor<T>();
    ALL_ROWS(a) {
        auto w = weights.at(g);
        auto dw = d_weights.at(g);
        write_back<T>(n, into, out, w.p, w.row, X.at(g), d.at(g), dW.at(g), dX.at(g), dd.at(g),
                      dw.p, dw.row, false);
    }
}
KERNEL(write_backward)
