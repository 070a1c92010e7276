// A chunk of Muon that steps often: one matrix of the memory, made at every token, and gradients in
// reverse.   chunkwise.py
//
//   S <- theta S + sum_j gamma_j d_j (x) x_j,  L <- alpha L - eta NS(S) where a step is due
//
// Matrices are kept with their shorter side in rows, which are then a product's panel as they are.
#pragma once

struct MuonSizes {
    long m, window, out, into, period;
    Polynomial of;
    explicit MuonSizes(Arguments &a)
        : m(a.size()), window(a.size()), out(a.size()), into(a.size()), period(a.size()), of(a) {}
    bool turned() const { return out < into; }
    long rows() const { return turned() ? into : out; }
    long columns() const { return turned() ? out : into; }
    long numbers() const { return out * into; }
    bool due(long t) const { return (t + 1) % period == 0; }
    template <class T> Matrix<T> kept(T *p) const { return {p, columns(), 1}; }
    // As [out, in], of numbers that are kept.
    template <class T> Matrix<T> matrix(T *p) const {
        return turned() ? kept(p).turned() : kept(p);
    }
};

// Pairs d, x of the window and the chunk; gates; queries.
template <class T> struct MuonStreams {
    Matrix<T> d, x, alpha, eta, theta, gamma, q;
    static MuonStreams of(Tensor<T> *in, long g) {
        auto at = [&](int i) { return in[i].at(g); };
        return {at(0), at(1), at(2), at(3), at(4), at(5), at(6)};
    }
    // The pairs of a token's window, oldest first, by the longer and by the shorter side.
    Matrix<T> along(const MuonSizes &s, long t) const { return (s.turned() ? x : d).from(t); }
    Matrix<T> across(const MuonSizes &s, long t) const { return (s.turned() ? d : x).from(t); }
    T *oldest(const MuonSizes &s, long t) const { return &gamma(t, s.window - 1); }
};
constexpr int MUON_STREAMS = 7;

// S and L behind t tokens, and NS(S) of those that step: of all tokens, or of one.
template <class T> struct MuonChunk {
    MuonSizes s;
    bool all;
    T *momenta, *matrices, *steps;
    MuonChunk(const MuonSizes &s, Room &room, bool all) : s(s), all(all) {
        long n = (all ? s.m + 1 : 1) * s.numbers();
        momenta = room.numbers<T>(n);
        matrices = room.numbers<T>(n);
        steps = room.numbers<T>(n);
    }
    T *S(long t) const { return momenta + all * t * s.numbers(); }
    T *L(long t) const { return matrices + all * t * s.numbers(); }
    T *N(long t) const { return steps + all * t * s.numbers(); }
};

// o = x, whichever way they lie.
template <class T> static void moved(long rows, long n, Matrix<const T> x, Matrix<T> o) {
    for (long i = 0; i < rows; i++)
        for (long j = 0; j < n; j++) o(i, j) = x(i, j);
}

// o = p x + q a (x) b, of a matrix that is kept.
template <class T>
static void with_pair(const MuonSizes &s, T p, const T *x, T q, const T *a, const T *b, T *o) {
    long n = s.columns();
    for (long i = 0; i < s.rows(); i++) blended<T>(n, p, x + i * n, q * a[i], b, o + i * n);
}

// <x, y> in four sums that do not wait for each other.
template <class T> static T inside(long n, const T *x, const T *y) {
    constexpr long L = LANES<T>;
    Vector<T> s[4] = {};
    long i = 0;
    for (; i + 4 * L <= n; i += 4 * L)
#pragma GCC unroll 4
        for (long j = 0; j < 4; j++) s[j] += load<T>(x + i + j * L) * load<T>(y + i + j * L);
    return sum<T>(s[0] + s[1] + s[2] + s[3]) + dot<T>(n - i, x + i, y + i);
}

// All tokens in turn: step(t, S, N) makes NS(S), read(t, L) takes the matrix of token t.
template <class T, class Step, class Read>
static void by_token(const MuonStreams<const T> &c, const MuonChunk<T> &a, Step step, Read read) {
    const MuonSizes &s = a.s;
    long n = s.numbers();
    for (long t = 0; t < s.m; t++) {
        T *S = a.S(t + 1), *L = a.L(t + 1), *N = a.N(t);
        auto along = c.along(s, t), across = c.across(s, t);
        with_pair<T>(s, c.theta(t, 0), a.S(t), *c.oldest(s, t), &along(0, 0), &across(0, 0), S);
        if (s.window > 1)
            write<T>(s.window - 1, s.columns(), s.rows(), c.oldest(s, t) - 1, -1, across.from(1),
                     along.from(1), s.kept(S));
        if (s.due(t)) {
            step(t, fixed(s.matrix(S)), s.matrix(N));
            blended<T>(n, c.alpha(t, 0), a.L(t), -c.eta(t, 0), N, L);
        } else {
            scaled<T>(n, c.alpha(t, 0), a.L(t), L);
        }
        read(t, fixed(s.matrix(L)));
    }
}

// left: what makes the steps again, one below the other.
template <class T> static void muon_forward(Arguments a) {
    MuonSizes s(a);
    auto L = a.tensor<const T>(), S = a.tensor<const T>();
    Tensor<const T> in[MUON_STREAMS];
    for (auto &x : in) x = a.tensor<const T>();
    auto z = a.tensor<T>(), L_end = a.tensor<T>(), S_end = a.tensor<T>(), left = a.tensor<T>();
    ALL_ROWS(a) {
        Rounding exact(false);
        Room room;
        MuonChunk<T> chunk(s, room, false);
        auto c = MuonStreams<const T>::of(in, g);
        moved<T>(s.out, s.into, L.at(g), s.matrix(chunk.L(0)));
        moved<T>(s.out, s.into, S.at(g), s.matrix(chunk.S(0)));
        auto step = [&](long t, Matrix<const T> S, Matrix<T> N) {
            T *to = left ? &left.at(g)(t / s.period, 0) : nullptr;
            newton_schulz<T>(s.of, s.out, s.into, S, N, to);
        };
        auto answer = [&](long t, Matrix<const T> L) {
            product<T>(1, s.out, s.into, c.q.from(t), L.turned(), z.at(g).from(t));
        };
        by_token<T>(c, chunk, step, answer);
        moved<T>(s.out, s.into, fixed(s.matrix(chunk.L(s.m))), L_end.at(g));
        moved<T>(s.out, s.into, fixed(s.matrix(chunk.S(s.m))), S_end.at(g));
    }
}
KERNEL(muon_forward)

// Gradients of L and S come in as those behind the chunk, and go out as those at its start.
template <class T>
static void teach_by_token(const MuonStreams<const T> &c, const MuonChunk<T> &a, Matrix<const T> dz,
                           T *dL, T *dS, const MuonStreams<T> &to) {
    Room room;
    const MuonSizes &s = a.s;
    long n = s.numbers(), out = s.rows(), into = s.columns();
    T *asked = room.numbers<T>(n), keeps = 1, fades = 1;
    for (long t = s.m - 1; t >= 0; t--) {
        const T *q = &c.q(t, 0), *w = &dz(t, 0);
        with_pair<T>(s, keeps, dL, 1, s.turned() ? q : w, s.turned() ? w : q, dL);
        keeps = c.alpha(t, 0);
        to.alpha(t, 0) = inside<T>(n, dL, a.L(t));
        if (s.due(t)) {
            to.eta(t, 0) = -inside<T>(n, dL, a.N(t));
            newton_schulz_back<T>(s.of, s.out, s.into, fixed(s.matrix(dL)),
                                  fixed(s.matrix(a.S(t + 1))), s.matrix(asked));
            blended<T>(n, fades, dS, -c.eta(t, 0), asked, dS);
        } else {
            to.eta(t, 0) = 0;
            scaled<T>(n, fades, dS, dS);
        }
        fades = c.theta(t, 0);
        to.theta(t, 0) = inside<T>(n, dS, a.S(t));
        write_back<T>(s.window, into, out, c.oldest(s, t), -1, c.across(s, t), c.along(s, t),
                      fixed(s.kept(dS)), to.across(s, t), to.along(s, t), to.oldest(s, t), -1,
                      true);
    }
    scaled<T>(n, keeps, dL, dL);
    scaled<T>(n, fades, dS, dS);
}

template <class T> static void muon_backward(Arguments a) {
    MuonSizes s(a);
    auto dz = a.tensor<const T>(), dL_end = a.tensor<const T>(), dS_end = a.tensor<const T>();
    auto L = a.tensor<const T>(), S = a.tensor<const T>();
    Tensor<const T> in[MUON_STREAMS];
    Tensor<T> out[MUON_STREAMS];
    for (auto &x : in) x = a.tensor<const T>();
    auto left = a.tensor<const T>();
    auto dL_start = a.tensor<T>(), dS_start = a.tensor<T>();
    for (auto &x : out) x = a.tensor<T>();
    ALL_ROWS(a) {
        Rounding exact(false);
        Room room;
        MuonChunk<T> chunk(s, room, true);
        T *dL = room.numbers<T>(s.numbers()), *dS = room.numbers<T>(s.numbers());
        auto c = MuonStreams<const T>::of(in, g);
        auto to = MuonStreams<T>::of(out, g);
        moved<T>(s.out, s.into, L.at(g), s.matrix(chunk.L(0)));
        moved<T>(s.out, s.into, S.at(g), s.matrix(chunk.S(0)));
        moved<T>(s.out, s.into, dL_end.at(g), s.matrix(dL));
        moved<T>(s.out, s.into, dS_end.at(g), s.matrix(dS));
        auto step = [&](long t, Matrix<const T> S, Matrix<T> N) {
            again<T>(s.of, s.out, s.into, S, &left.at(g)(t / s.period, 0), N);
        };
        auto asked = [&](long t, Matrix<const T> L) {
            product<T>(1, s.into, s.out, dz.at(g).from(t), L, to.q.from(t));
        };
        by_token<T>(c, chunk, step, asked);
        teach_by_token<T>(c, chunk, dz.at(g), dL, dS, to);
        moved<T>(s.out, s.into, fixed(s.matrix(dL)), dL_start.at(g));
        moved<T>(s.out, s.into, fixed(s.matrix(dS)), dS_start.at(g));
    }
}
KERNEL(muon_backward)
