// A text of an MLP memory that is written from each chunk's start: its chunks one behind the other,
// and their gradients in reverse.   chunkwise.py, architectures.py
#pragma once

struct DeepSizes {
    // back: pairs of the window before a chunk; keeps: every chunk's part, for its gradient
    long tokens, chunk, back, D, hidden, dv, keeps;
    explicit DeepSizes(Arguments &a)
        : tokens(a.size()), chunk(a.size()), back(a.size()), D(a.size()), hidden(a.size()),
          dv(a.size()), keeps(a.size()) {}
    long chunks() const { return (tokens + chunk - 1) / chunk; }
    long pairs() const { return chunk + back; }
};

// Matrices of a row: W1, W2 and, with momentum, S1, S2.
template <class T> struct Matrices {
    Matrix<T> W1, W2, S1, S2;
    Matrices at(const DeepSizes &s, long border) const {  // of those kept at every border
        if (!s.keeps) border %= 2;
        auto of = [&](Matrix<T> x, long rows) { return x.p ? x.from(border * rows) : x; };
        return {of(W1, s.dv), of(W2, s.hidden), of(S1, s.dv), of(S2, s.hidden)};
    }
};

// Streams [tokens (+ back), ..]; what is to be said of a key, v or v - k, is `target`.
template <class T> struct Streams {
    Matrix<T> phi_k, target, phi_q, A, C, B, T_, P;
    Streams at(long begin) const {
        auto of = [&](Matrix<T> x) { return x.p ? x.from(begin) : x; };
        return {of(phi_k), of(target), of(phi_q), of(A), of(C), of(B), of(T_), of(P)};
    }
};

// What a chunk makes and its gradient needs: z of keys and queries, e, dl/dh, and inner products.
template <class T> struct Chunk {
    Matrix<T> z_k, e, dh, z_q, scores, inner;
    Chunk at(const DeepSizes &s, long j) const {
        if (!s.keeps) j = 0;
        long n = j * s.pairs(), m = j * s.chunk;
        return {z_k.from(n), e.from(n), dh.from(n), z_q.from(m), scores.from(m), inner.from(m)};
    }
};

// o = s(z), s = GELU
template <class T> static void gelu(long rows, long n, Matrix<const T> z, Matrix<T> o) {
    for (long t = 0; t < rows; t++)
        ALONG(i, n) {
            Vector<T> x = load<T>(&z(t, 0) + i, n - i);
            store<T>(&o(t, 0) + i, x * normal(x).cdf, n - i);
        }
}

// o = g s'(z)
template <class T>
static void through_gelu(long rows, long n, Matrix<const T> g, Matrix<const T> z, Matrix<T> o) {
    for (long t = 0; t < rows; t++)
        ALONG(i, n) {
            Vector<T> x = load<T>(&z(t, 0) + i, n - i);
            auto p = normal(x);
            store<T>(&o(t, 0) + i, load<T>(&g(t, 0) + i, n - i) * (p.cdf + x * p.pdf), n - i);
        }
}

// Of d = dh s'(z) and h = s(z): dh <- dd s'(z) in the place of dd, and dz of both.
template <class T>
static void both_back(long rows, long n, Matrix<const T> z, Matrix<const T> dh, Matrix<T> dd,
                      Matrix<T> dz) {
    for (long t = 0; t < rows; t++)
        ALONG(i, n) {
            long l = n - i;
            T *given = &dd(t, 0) + i, *out = &dz(t, 0) + i;
            Vector<T> x = load<T>(&z(t, 0) + i, l), asked = load<T>(given, l);
            auto p = normal(x);
            store<T>(out, asked * load<T>(&dh(t, 0) + i, l) * p.pdf * (2 - x * x), l);
            store<T>(given, asked * (p.cdf + x * p.pdf), l);
        }
}

// W <- A W + B S + sum C d (x) x, S <- T S + sum P d (x) x, with the weights of the last token.
template <class T>
static void end_of_chunk(long n, long into, long out, const Streams<const T> &c, long last,
                         Matrix<const T> x, Matrix<const T> d, Matrix<const T> W, Matrix<const T> S,
                         Matrix<T> W_after, Matrix<T> S_after) {
    weigh<T>(out, into, c.A(last, 0), W, W_after);
    write<T>(n, into, out, &c.C(last, 0), 1, x, d, W_after);
    if (!S.p) return;
    for (long i = 0; i < out; i++) scaled<T>(into, c.B(last, 0), &S(i, 0), &W_after(i, 0), true);
    weigh<T>(out, into, c.T_(last, 0), S, S_after);
    write<T>(n, into, out, &c.P(last, 0), 1, x, d, S_after);
}

template <class T>
static void deep_chunk(const DeepSizes &s, long m, const Streams<const T> &c, const Chunk<T> &a,
                       const Matrices<const T> &now, const Matrices<T> &after, Matrix<T> y,
                       bool whole) {
    Room room;
    long n = m + s.back, last = m - 1;
    auto h_k = room.matrix<T>(n, s.hidden), d = room.matrix<T>(n, s.hidden);
    auto h_q = room.matrix<T>(m, s.hidden);
    product<T>(n, s.hidden, s.D, c.phi_k, now.W2.turned(), a.z_k);
    gelu<T>(n, s.hidden, fixed(a.z_k), h_k);
    product<T>(n, s.dv, s.hidden, fixed(h_k), now.W1.turned(), a.e);
    for (long i = 0; i < n; i++) minus<T>(s.dv, &a.e(i, 0), &c.target(i, 0), &a.e(i, 0));
    product<T>(n, s.hidden, s.dv, fixed(a.e), now.W1, a.dh);
    through_gelu<T>(n, s.hidden, fixed(a.dh), fixed(a.z_k), d);
    read<T>({m, n, s.D, s.hidden},
            {c.phi_q, c.phi_k, fixed(d), now.W2, now.S2, c.A, c.B, c.C, a.inner}, a.z_q);
    gelu<T>(m, s.hidden, fixed(a.z_q), h_q);
    read<T>({m, n, s.hidden, s.dv},
            {fixed(h_q), fixed(h_k), fixed(a.e), now.W1, now.S1, c.A, c.B, c.C, a.scores}, y);
    if (!whole) return;
    end_of_chunk<T>(n, s.hidden, s.dv, c, last, fixed(h_k), fixed(a.e), now.W1, now.S1, after.W1,
                    after.S1);
    end_of_chunk<T>(n, s.D, s.hidden, c, last, c.phi_k, fixed(d), now.W2, now.S2, after.W2, after.S2);
}

// The inverse of `end_of_chunk`: dW and dS behind the chunk become those at its start.
template <class T>
static void end_back(long n, long into, long out, const Streams<const T> &c, const Streams<T> &to,
                     long last, Matrix<const T> x, Matrix<const T> d, Matrix<const T> W,
                     Matrix<const T> S, Matrix<T> dW, Matrix<T> dS, Matrix<T> dx, Matrix<T> dd) {
    write_back<T>(n, into, out, &c.C(last, 0), 1, x, d, fixed(dW), dx, dd, &to.C(last, 0), 1, true);
    if (S.p)
        write_back<T>(n, into, out, &c.P(last, 0), 1, x, d, fixed(dS), dx, dd, &to.P(last, 0), 1,
                      true);
    T a = c.A(last, 0), b = S.p ? c.B(last, 0) : T(0), t = S.p ? c.T_(last, 0) : T(0);
    for (long i = 0; i < out; i++) {
        T *w = &dW(i, 0);
        to.A(last, 0) += dot<T>(into, w, &W(i, 0));
        if (S.p) {
            T *v = &dS(i, 0);
            to.B(last, 0) += dot<T>(into, w, &S(i, 0));
            to.T_(last, 0) += dot<T>(into, v, &S(i, 0));
            scaled<T>(into, t, v, v);
            scaled<T>(into, b, w, v, true);
        }
        scaled<T>(into, a, w, w);
    }
}

// now: matrices at the chunk's start; d: their gradients, behind the chunk and then at its start.
template <class T>
static void deep_chunk_back(const DeepSizes &s, long m, const Streams<const T> &c,
                            const Chunk<const T> &a, const Matrices<const T> &now,
                            Matrix<const T> dy, const Streams<T> &to, const Matrices<T> &d,
                            bool whole) {
    Room room;
    long n = m + s.back, last = m - 1, hidden = s.hidden;
    auto h_k = room.matrix<T>(n, hidden), taught = room.matrix<T>(n, hidden);
    auto h_q = room.matrix<T>(m, hidden), dh_q = room.matrix<T>(m, hidden);
    auto dh_k = room.matrix<T>(n, hidden), dd = room.matrix<T>(n, hidden);
    auto dz = room.matrix<T>(n, hidden), more = room.matrix<T>(n, hidden);
    auto de = room.matrix<T>(n, s.dv), d_phi = room.matrix<T>(m, s.D);
    gelu<T>(n, hidden, a.z_k, h_k);
    gelu<T>(m, hidden, a.z_q, h_q);
    through_gelu<T>(n, hidden, a.dh, a.z_k, taught);
    clear<T>(n, hidden, dh_k);
    clear<T>(n, hidden, dd);
    clear<T>(n, s.dv, de);
    if (whole) {
        end_back<T>(n, hidden, s.dv, c, to, last, fixed(h_k), a.e, now.W1, now.S1, d.W1, d.S1, dh_k,
                    de);
        end_back<T>(n, s.D, hidden, c, to, last, c.phi_k, fixed(taught), now.W2, now.S2, d.W2, d.S2,
                    to.phi_k, dd);
    }
    Matrix<T> scores = {(T *)a.scores.p, a.scores.row, 1}, inner = {(T *)a.inner.p, a.inner.row, 1};
    read_back<T>({m, n, hidden, s.dv},
                 {fixed(h_q), fixed(h_k), a.e, now.W1, now.S1, c.A, c.B, c.C, scores}, dy,
                 {dh_q, dh_k, de, d.W1, d.S1, to.A, to.B, to.C}, true);
    through_gelu<T>(m, hidden, fixed(dh_q), a.z_q, dh_q);
    read_back<T>({m, n, s.D, hidden},
                 {c.phi_q, c.phi_k, fixed(taught), now.W2, now.S2, c.A, c.B, c.C, inner}, fixed(dh_q),
                 {d_phi, to.phi_k, dd, d.W2, d.S2, to.A, to.B, to.C}, true);
    for (long t = 0; t < m; t++) scaled<T>(s.D, 1, &d_phi(t, 0), &to.phi_q(t, 0));
    both_back<T>(n, hidden, a.z_k, a.dh, dd, dz);
    product<T>(n, s.dv, hidden, fixed(dd), now.W1.turned(), de, true);
    product<T>(s.dv, hidden, n, a.e.turned(), fixed(dd), d.W1, true);
    for (long i = 0; i < n; i++) scaled<T>(s.dv, -1, &de(i, 0), &to.target(i, 0), true);
    product<T>(n, hidden, s.dv, fixed(de), now.W1, dh_k, true);
    product<T>(s.dv, hidden, n, fixed(de).turned(), fixed(h_k), d.W1, true);
    through_gelu<T>(n, hidden, fixed(dh_k), a.z_k, more);
    for (long i = 0; i < n; i++) scaled<T>(hidden, 1, &more(i, 0), &dz(i, 0), true);
    product<T>(n, s.D, hidden, fixed(dz), now.W2, to.phi_k, true);
    product<T>(hidden, s.D, n, fixed(dz).turned(), c.phi_k, d.W2, true);
}

// W1, W2, S1, S2 at every chunk's start and behind the last whole one, below each other.
template <class T> static void deep_forward(Arguments a) {
    DeepSizes s(a);
    Tensor<T> M[4], made[6];
    Tensor<const T> in[8];
    for (auto &x : M) x = a.tensor<T>();
    for (auto &x : in) x = a.tensor<const T>();
    for (auto &x : made) x = a.tensor<T>();
    auto y = a.tensor<T>();
    ALL_ROWS(a) {
        Matrices<T> kept = {M[0].at(g), M[1].at(g), M[2].at(g), M[3].at(g)};
        Streams<const T> text = {in[0].at(g), in[1].at(g), in[2].at(g), in[3].at(g),
                                 in[4].at(g), in[5].at(g), in[6].at(g), in[7].at(g)};
        Chunk<T> chunk = {made[0].at(g), made[1].at(g), made[2].at(g),
                          made[3].at(g), made[4].at(g), made[5].at(g)};
        for (long j = 0; j < s.chunks(); j++) {
            long begin = j * s.chunk, m = s.tokens - begin < s.chunk ? s.tokens - begin : s.chunk;
            auto here = kept.at(s, j);
            Matrices<const T> now = {fixed(here.W1), fixed(here.W2), fixed(here.S1), fixed(here.S2)};
            bool whole = m == s.chunk;
            deep_chunk<T>(s, m, text.at(begin), chunk.at(s, j), now,
                          whole ? kept.at(s, j + 1) : kept, y.at(g).from(begin), whole);
        }
    }
}
KERNEL(deep_forward)

template <class T> static void deep_backward(Arguments a) {
    DeepSizes s(a);
    Tensor<const T> M[4], in[8], made[6];
    Tensor<T> dM[4], out[8];
    auto dy = a.tensor<const T>();
    for (auto &x : M) x = a.tensor<const T>();
    for (auto &x : in) x = a.tensor<const T>();
    for (auto &x : made) x = a.tensor<const T>();
    for (auto &x : dM) x = a.tensor<T>();
    for (auto &x : out) x = a.tensor<T>();
    ALL_ROWS(a) {
        Matrices<const T> kept = {M[0].at(g), M[1].at(g), M[2].at(g), M[3].at(g)};
        Matrices<T> d = {dM[0].at(g), dM[1].at(g), dM[2].at(g), dM[3].at(g)};
        Streams<const T> text = {in[0].at(g), in[1].at(g), in[2].at(g), in[3].at(g),
                                 in[4].at(g), in[5].at(g), in[6].at(g), in[7].at(g)};
        Streams<T> to = {out[0].at(g), out[1].at(g), out[2].at(g), out[3].at(g),
                         out[4].at(g), out[5].at(g), out[6].at(g), out[7].at(g)};
        Chunk<const T> chunk = {made[0].at(g), made[1].at(g), made[2].at(g),
                                made[3].at(g), made[4].at(g), made[5].at(g)};
        for (long j = s.chunks() - 1; j >= 0; j--) {
            long begin = j * s.chunk, m = s.tokens - begin < s.chunk ? s.tokens - begin : s.chunk;
            deep_chunk_back<T>(s, m, text.at(begin), chunk.at(s, j), kept.at(s, j),
                               dy.at(g).from(begin), to.at(begin), d, m == s.chunk);
        }
    }
}
KERNEL(deep_backward)
