// A text of an MLP memory that is written exactly: its chunks one behind the other, and their
// gradients in reverse.   online_chunk.py, learner.py
#pragma once

// hidden: width of the hidden layer. Muon: steps every `period` tokens, and `rows` of T and P a chunk.
// keeps: what is known at every chunk's start, for its gradient.
struct TextSizes {
    long tokens, chunk, run, window, D, hidden, dv, heavy, forgets, muon, period, rows, keeps;
    Polynomial polynomial;
    explicit TextSizes(Arguments &a)
        : tokens(a.size()), chunk(a.size()), run(a.size()), window(a.size()), D(a.size()),
          hidden(a.size()), dv(a.size()), heavy(a.size()), forgets(a.size()), muon(a.size()),
          period(a.size()), rows(a.size()), keeps(a.size()), polynomial(a) {}
    long back() const { return window - 1; }
    long pairs() const { return chunk + back(); }
    long runs() const { return (chunk + run - 1) / run; }
    long steps() const { return muon ? chunk / period : 0; }
    long chunks() const { return (tokens + chunk - 1) / chunk; }
    Sizes exact(long m) const { return {m, run, window, hidden, dv, heavy, back()}; }
};

// Streams of a text [tokens, ..], those of Muon's steps by chunk; names as in learner.py. kept: T,
// what is left of R. asked: what is left of the queries' features; newborn: what they find in H_0.
template <class T> struct Text {
    Matrix<T> phi_k, target, now, before, momentum;
    Matrix<T> A, C, B, kept, P, E, since;
    Matrix<T> phi_q, asked, newborn;

    // From the block-th chunk on, which begins at a token.
    Text at(const TextSizes &s, long begin, long block) const {
        auto by_token = [&](Matrix<T> a) { return a.p ? a.from(begin) : a; };
        auto by = [&](Matrix<T> a, long rows) { return s.muon ? a.from(block * rows) : by_token(a); };
        return {by_token(phi_k), by_token(target),   by_token(now), by_token(before),
                by_token(momentum), by(A, s.steps()), by_token(C),   by_token(B),
                by(kept, s.rows),  by(P, s.rows),     by(E, s.steps()), by_token(since),
                by_token(phi_q),   by_token(asked),   by_token(newborn)};
    }
    static Text of(Tensor<T> *in, long g) {
        auto at = [&](int i) { return in[i].at(g); };
        return {at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6), at(7),
                at(8), at(9), at(10), at(11), at(12), at(13), at(14)};
    }
};
constexpr int STREAMS = 15;

// W (and S) of the output, H and its momentum R of the hidden layer.
template <class T> struct Known {
    Matrix<T> W, S, H, R;
};

// What is known at a chunk's start, and what it makes.
template <class T> struct TextChunk {
    Matrix<T> W, S, H, R;  // W and S at the start of every run and behind the last
    Matrix<T> z, length, dh, e, P, P_S, G, e_old, z_q, Q, Q_S, inner;
    Matrix<T> H_r, O_r, N_r;  // behind every step of Muon, the momentum it takes, and NS of that

    TextChunk(const TextSizes &s, Room &room) {
        long n = s.pairs(), runs = s.runs(), pairs = s.run + s.back(), steps = s.steps();
        auto take = [&](long rows, long columns) { return room.matrix<T>(rows, columns); };
        auto heavy = [&](long rows, long n) { return s.heavy ? take(rows, n) : Matrix<T>{}; };
        W = take((runs + 1) * s.dv, s.hidden);
        S = heavy((runs + 1) * s.dv, s.hidden);
        H = take(s.hidden, s.D);
        R = take(s.hidden, s.D);
        z = take(n, s.hidden);
        length = take(n, 1);
        dh = take(n, s.hidden);
        e = take(s.chunk * s.window, s.dv);
        P = take(runs * pairs, s.dv);
        P_S = heavy(runs * pairs, s.dv);
        G = take(runs * pairs, pairs);
        e_old = take(s.back(), s.dv);
        z_q = take(s.chunk, s.hidden);
        Q = take(s.chunk, s.dv);
        Q_S = heavy(s.chunk, s.dv);
        inner = take(s.chunk, pairs);
        H_r = take((steps + 1) * s.hidden, s.D);
        O_r = take(steps * s.hidden, s.D);
        N_r = take(steps * s.hidden, s.D);
    }
};

template <class T> static void copy(long rows, long n, Matrix<const T> x, Matrix<T> o) {
    for (long i = 0; i < rows; i++) scaled<T>(n, 1, &x(i, 0), &o(i, 0));
}
template <class T> static void added(long rows, long n, T a, Matrix<const T> x, Matrix<T> o) {
    for (long i = 0; i < rows; i++) scaled<T>(n, a, &x(i, 0), &o(i, 0), true);
}
template <class T> static T inside(long rows, long n, Matrix<const T> x, Matrix<const T> y) {
    T sum = 0;
    for (long i = 0; i < rows; i++) sum += dot<T>(n, &x(i, 0), &y(i, 0));
    return sum;
}

// o = first + share (H - first): H where the share is 1.
template <class T>
static void left(const TextSizes &s, T share, Matrix<const T> first, Matrix<const T> H, Matrix<T> o) {
    for (long i = 0; i < s.hidden; i++) {
        const T *a = &first(i, 0), *b = &H(i, 0);
        T *to = &o(i, 0);
        for (long j = 0; j < s.D; j++)
            to[j] = share < T(0.5) ? a[j] + share * (b[j] - a[j]) : b[j] - (b[j] - a[j]) * (1 - share);
    }
}

// Of `left`, from what is asked of o: the gradient of the share; dH and d_first are added to.
template <class T>
static T left_back(const TextSizes &s, T share, Matrix<const T> first, Matrix<const T> H,
                   Matrix<const T> asked, Matrix<T> dH, Matrix<T> d_first) {
    added<T>(s.hidden, s.D, share, asked, dH);
    if (!s.forgets) return 0;
    added<T>(s.hidden, s.D, 1 - share, asked, d_first);
    return inside<T>(s.hidden, s.D, asked, H) - inside<T>(s.hidden, s.D, asked, first);
}

// H - H_0, of which queries read what is left; without forgetting they read H.
template <class T>
static void apart(const TextSizes &s, Matrix<const T> H, Matrix<const T> first, Matrix<T> o) {
    copy<T>(s.hidden, s.D, H, o);
    if (s.forgets) added<T>(s.hidden, s.D, -1, first, o);
}

// z += asked (H - H_0)^T of some tokens, and its gradients: asked laid down, matrices added to.
template <class T>
static void read_apart(const TextSizes &s, long m, Matrix<const T> asked, Matrix<const T> H,
                       Matrix<const T> first, Matrix<T> z) {
    Room room;
    auto differs = room.matrix<T>(s.hidden, s.D);
    apart<T>(s, H, first, differs);
    product<T>(m, s.hidden, s.D, asked, fixed(differs).turned(), z, true);
}
template <class T>
static void read_apart_back(const TextSizes &s, long m, Matrix<const T> dz, Matrix<const T> asked,
                            Matrix<const T> H, Matrix<const T> first, Matrix<T> d_asked, Matrix<T> dH,
                            Matrix<T> d_first) {
    Room room;
    auto differs = room.matrix<T>(s.hidden, s.D);
    apart<T>(s, H, first, differs);
    product<T>(m, s.D, s.hidden, dz, fixed(differs), d_asked);
    product<T>(s.hidden, s.D, m, dz.turned(), asked, differs);
    added<T>(s.hidden, s.D, 1, fixed(differs), dH);
    if (s.forgets) added<T>(s.hidden, s.D, -1, fixed(differs), d_first);
}

// ---- descent and momentum ------------------------------------------------------------------------

// What queries find: z = newborn + A (H - H_0) phi + B R phi + sum_i C [t, i] (x_i . phi) d_i, and
// H and R behind the chunk.
template <class T>
static void move_summed(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                        Matrix<const T> d, Matrix<const T> first, const Known<T> &after) {
    Room room;
    long n = m + s.back(), last = m - 1;
    auto H = fixed(a.H), R = fixed(a.R);
    auto weighted = room.matrix<T>(m, n);
    read_apart<T>(s, m, c.asked, H, first, a.z_q);
    if (s.heavy) {
        auto found = room.matrix<T>(m, s.hidden);
        product<T>(m, s.hidden, s.D, c.phi_q, R.turned(), found);
        for (long t = 0; t < m; t++)
            scaled<T>(s.hidden, c.B(t, 0), &found(t, 0), &a.z_q(t, 0), true);
    }
    product<T>(m, n, s.D, c.phi_q, c.phi_k.turned(), weighted);
    for (long t = 0; t < m; t++) times<T>(n, &weighted(t, 0), &c.C(t, 0), &weighted(t, 0));
    product<T>(m, s.hidden, n, fixed(weighted), d, a.z_q, true);
    left<T>(s, s.forgets ? c.A(last, 0) : T(1), first, H, after.H);
    if (s.heavy) added<T>(s.hidden, s.D, c.B(last, 0), R, after.H);
    write<T>(n, s.D, s.hidden, &c.C(last, 0), 1, c.phi_k, d, after.H);
    if (!s.heavy) return;
    weigh<T>(s.hidden, s.D, c.kept(last, 0), R, after.R);
    write<T>(n, s.D, s.hidden, &c.P(last, 0), 1, c.phi_k, d, after.R);
}

// to.H, to.R: gradients behind the chunk, and then at its start.
template <class T>
static void move_summed_back(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                             Matrix<const T> d, Matrix<const T> first, Matrix<const T> dz,
                             const Text<T> &to, const Known<T> &known, Matrix<T> dd,
                             Matrix<T> d_first) {
    Room room;
    long n = m + s.back(), last = m - 1, hidden = s.hidden, D = s.D;
    auto H = fixed(a.H), R = fixed(a.R);
    auto dH = room.matrix<T>(hidden, D), weighted = room.matrix<T>(m, n);
    auto scores = room.matrix<T>(m, n), d_scores = room.matrix<T>(m, n);
    clear<T>(hidden, D, dH);
    T share = s.forgets ? c.A(last, 0) : T(1);
    T d_share = left_back<T>(s, share, first, H, fixed(known.H), dH, d_first);
    if (s.forgets) to.A(last, 0) += d_share;
    write_back<T>(n, D, hidden, &c.C(last, 0), 1, c.phi_k, d, fixed(known.H), to.phi_k, dd,
                  &to.C(last, 0), 1, true);
    product<T>(m, n, D, c.phi_q, c.phi_k.turned(), scores);
    product<T>(m, n, hidden, dz, d.turned(), d_scores);
    for (long t = 0; t < m; t++) {
        times<T>(n, &d_scores(t, 0), &scores(t, 0), &to.C(t, 0), true);
        times<T>(n, &d_scores(t, 0), &c.C(t, 0), &d_scores(t, 0));
        times<T>(n, &scores(t, 0), &c.C(t, 0), &weighted(t, 0));
    }
    product<T>(m, D, n, fixed(d_scores), c.phi_k, to.phi_q);
    product<T>(n, D, m, fixed(d_scores).turned(), c.phi_q, to.phi_k, true);
    product<T>(n, hidden, m, fixed(weighted).turned(), dz, dd, true);
    if (s.heavy) {
        auto dR = room.matrix<T>(hidden, D), found = room.matrix<T>(m, hidden);
        weigh<T>(hidden, D, c.kept(last, 0), fixed(known.R), dR);
        added<T>(hidden, D, c.B(last, 0), fixed(known.H), dR);
        to.kept(last, 0) += inside<T>(hidden, D, fixed(known.R), R);
        to.B(last, 0) += inside<T>(hidden, D, fixed(known.H), R);
        write_back<T>(n, D, hidden, &c.P(last, 0), 1, c.phi_k, d, fixed(known.R), to.phi_k, dd,
                      &to.P(last, 0), 1, true);
        product<T>(m, hidden, D, c.phi_q, R.turned(), found);
        for (long t = 0; t < m; t++) {
            to.B(t, 0) += dot<T>(hidden, &dz(t, 0), &found(t, 0));
            scaled<T>(hidden, c.B(t, 0), &dz(t, 0), &found(t, 0));
        }
        product<T>(m, D, hidden, fixed(found), R, to.phi_q, true);
        product<T>(hidden, D, m, fixed(found).turned(), c.phi_q, dR, true);
        copy<T>(hidden, D, fixed(dR), known.R);
    }
    read_apart_back<T>(s, m, dz, c.asked, H, first, to.asked, dH, d_first);
    copy<T>(hidden, D, fixed(dH), known.H);
}

// ---- Muon ----------------------------------------------------------------------------------------

struct Stretches {
    long size, period, m, steps;
    Stretches(const TextSizes &s, long m)
        : size(s.hidden), period(s.period), m(m), steps(m / s.period) {}
    bool steps_last() const { return steps && m % period == 0; }
    long begin(long r) const { return r ? r * period - 1 : 0; }
    long end(long r) const { return r < steps ? (r + 1) * period - 1 : m; }
    template <class T> Matrix<T> of(Matrix<T> x, long r) const { return x.from(r * size); }
};

// A matrix for every stretch of tokens, H_r = A_r H' + (1 - A_r) H_0 + sum_p E [r, p] NS(O_p).
template <class T>
static void move_by_muon(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                         Matrix<const T> d, Matrix<const T> first, const Known<T> &after) {
    Stretches at(s, m);
    long n = m + s.back(), D = s.D, hidden = s.hidden;
    copy<T>(hidden, D, fixed(a.H), a.H_r);
    for (long r = 0; r < at.steps; r++) {
        auto O = at.of(a.O_r, r), H = at.of(a.H_r, r + 1);
        weigh<T>(hidden, D, c.kept(r, 0), fixed(a.R), O);
        write<T>(n, D, hidden, &c.P(r, 0), 1, c.phi_k, d, O);
        newton_schulz<T>(s.polynomial, hidden, D, fixed(O), at.of(a.N_r, r));
        left<T>(s, s.forgets ? c.A(r, 0) : T(1), first, fixed(a.H), H);
        for (long p = 0; p <= r; p++) added<T>(hidden, D, c.E(r, p), fixed(at.of(a.N_r, p)), H);
    }
    if (at.steps_last()) {
        copy<T>(hidden, D, fixed(at.of(a.O_r, at.steps - 1)), after.R);
    } else {
        weigh<T>(hidden, D, c.kept(s.rows - 1, 0), fixed(a.R), after.R);
        write<T>(n, D, hidden, &c.P(s.rows - 1, 0), 1, c.phi_k, d, after.R);
    }
    T share = s.forgets && !at.steps_last() ? c.since(m - 1, 0) : T(1);
    left<T>(s, share, first, fixed(at.of(a.H_r, at.steps)), after.H);
    for (long r = 0; r <= at.steps; r++) {
        long begin = at.begin(r);
        read_apart<T>(s, at.end(r) - begin, c.asked.from(begin), fixed(at.of(a.H_r, r)), first,
                      a.z_q.from(begin));
    }
}

template <class T>
static void move_by_muon_back(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                              Matrix<const T> d, Matrix<const T> first, Matrix<const T> dz,
                              const Text<T> &to, const Known<T> &known, Matrix<T> dd,
                              Matrix<T> d_first) {
    Room room;
    Stretches at(s, m);
    long n = m + s.back(), D = s.D, hidden = s.hidden, rest = s.rows - 1;
    auto dH = room.matrix<T>((at.steps + 1) * hidden, D), dN = room.matrix<T>(at.steps * hidden, D);
    auto dO = room.matrix<T>(hidden, D), dR = room.matrix<T>(hidden, D);
    clear<T>((at.steps + 1) * hidden, D, dH);
    clear<T>(at.steps * hidden, D, dN);
    clear<T>(hidden, D, dR);
    bool fades = s.forgets && !at.steps_last();
    T share = fades ? c.since(m - 1, 0) : T(1);
    T d_share = left_back<T>(s, share, first, fixed(at.of(a.H_r, at.steps)), fixed(known.H),
                             at.of(dH, at.steps), d_first);
    if (fades) to.since(m - 1, 0) += d_share;
    for (long r = 0; r <= at.steps; r++) {
        long begin = at.begin(r);
        read_apart_back<T>(s, at.end(r) - begin, dz.from(begin), c.asked.from(begin),
                           fixed(at.of(a.H_r, r)), first, to.asked.from(begin), at.of(dH, r), d_first);
    }
    for (long r = 0; r < at.steps; r++) {
        auto asked = fixed(at.of(dH, r + 1));
        d_share = left_back<T>(s, s.forgets ? c.A(r, 0) : T(1), first, fixed(a.H), asked, dH, d_first);
        if (s.forgets) to.A(r, 0) += d_share;
        for (long p = 0; p <= r; p++) {
            to.E(r, p) += inside<T>(hidden, D, asked, fixed(at.of(a.N_r, p)));
            added<T>(hidden, D, c.E(r, p), asked, at.of(dN, p));
        }
    }
    auto momentum = [&](long r, Matrix<const T> asked) {
        to.kept(r, 0) += inside<T>(hidden, D, asked, fixed(a.R));
        added<T>(hidden, D, c.kept(r, 0), asked, dR);
        write_back<T>(n, D, hidden, &c.P(r, 0), 1, c.phi_k, d, asked, to.phi_k, dd, &to.P(r, 0), 1,
                      true);
    };
    if (!at.steps_last()) momentum(rest, fixed(known.R));
    for (long r = 0; r < at.steps; r++) {
        newton_schulz_back<T>(s.polynomial, hidden, D, fixed(at.of(dN, r)), fixed(at.of(a.O_r, r)),
                              dO);
        if (at.steps_last() && r + 1 == at.steps) added<T>(hidden, D, 1, fixed(known.R), dO);
        momentum(r, fixed(dO));
    }
    copy<T>(hidden, D, fixed(dH), known.H);
    copy<T>(hidden, D, fixed(dR), known.R);
}

// ---- a chunk -------------------------------------------------------------------------------------

template <class T> static ExactRow<T> exactly(const Text<const T> &c, const TextChunk<T> &a, Matrix<T> h) {
    return {a.W,    a.S, fixed(h), c.target, c.before, c.now, c.momentum, a.e,
            a.dh, a.P, a.P_S,    a.G,      a.e_old};
}

template <class T>
static void hidden_of(const TextSizes &s, long rows, Matrix<const T> z, Matrix<T> h) {
    for (long i = 0; i < rows; i++) unit<T>(s.hidden, &z(i, 0), &h(i, 0));
}

// d of the pairs, and |d| before it was bounded.
template <class T>
static void teach(const TextSizes &s, long n, const TextChunk<T> &a, Matrix<const T> h, Matrix<T> d,
                  T *norm) {
    for (long i = 0; i < n; i++)
        norm[i] = taught<T>(s.hidden, &a.dh(i, 0), &h(i, 0), a.length(i, 0), &a.z(i, 0), &d(i, 0));
}

// W, S, H, R at the start are in `a` already; d_end: what the last pairs taught the hidden layer.
template <class T>
static void read_chunk(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                       Matrix<const T> first, const Known<T> &after, Matrix<T> d_end, Matrix<T> y) {
    Room room;
    long n = m + s.back(), runs = (m + s.run - 1) / s.run;
    auto h = room.matrix<T>(n, s.hidden), d = room.matrix<T>(n, s.hidden);
    product<T>(n, s.hidden, s.D, c.phi_k, fixed(a.H).turned(), a.z);
    for (long i = 0; i < n; i++) a.length(i, 0) = unit<T>(s.hidden, &a.z(i, 0), &h(i, 0));
    write_exactly<T>(s.exact(m), exactly<T>(c, a, h));
    teach<T>(s, n, a, fixed(h), d, room.numbers<T>(n));
    if (s.forgets)
        copy<T>(m, s.hidden, c.newborn, a.z_q);
    else
        clear<T>(m, s.hidden, a.z_q);
    auto move = s.muon ? move_by_muon<T> : move_summed<T>;
    move(s, m, c, a, fixed(d), first, after);
    auto h_q = room.matrix<T>(m, s.hidden);
    hidden_of<T>(s, m, fixed(a.z_q), h_q);
    answer_exactly<T>(s.exact(m), {fixed(h_q), fixed(a.W), fixed(a.S), fixed(h), fixed(a.e), c.now, y,
                                   a.Q, a.Q_S, a.inner});
    copy<T>(s.dv, s.hidden, fixed(a.W.from(runs * s.dv)), after.W);
    if (s.heavy) copy<T>(s.dv, s.hidden, fixed(a.S.from(runs * s.dv)), after.S);
    if (d_end.p) copy<T>(s.back(), s.hidden, fixed(d.from(m)), d_end);
}

// known: gradients of what is known behind the chunk, and then at its start.
template <class T>
static void teach_chunk(const TextSizes &s, long m, const Text<const T> &c, const TextChunk<T> &a,
                        Matrix<const T> first, Matrix<const T> dy, Matrix<const T> d_end,
                        const Text<T> &to, const Known<T> &known, Matrix<T> d_first) {
    Room room;
    long n = m + s.back(), hidden = s.hidden, runs = (m + s.run - 1) / s.run;
    auto h = room.matrix<T>(n, hidden), d = room.matrix<T>(n, hidden);
    auto h_q = room.matrix<T>(m, hidden), dz_q = room.matrix<T>(m, hidden);
    auto dh_q = room.matrix<T>(m, hidden), d_passed = room.matrix<T>(n, hidden);
    auto dh = room.matrix<T>(n, hidden), dd = room.matrix<T>(n, hidden), dz = room.matrix<T>(n, hidden);
    auto dW = room.matrix<T>(runs * s.dv, hidden);
    auto dS = s.heavy ? room.matrix<T>(runs * s.dv, hidden) : Matrix<T>{};
    auto de = room.matrix<T>(s.chunk * s.window, s.dv);
    T *norm = room.numbers<T>(n), *row = room.numbers<T>(hidden);
    hidden_of<T>(s, n, fixed(a.z), h);
    teach<T>(s, n, a, fixed(h), d, norm);
    clear<T>(n, hidden, dh);
    clear<T>(n, hidden, dd);
    // ---- the answers
    T *length_q = room.numbers<T>(m);
    for (long t = 0; t < m; t++) length_q[t] = unit<T>(hidden, &a.z_q(t, 0), &h_q(t, 0));
    AnswerRow<T> answers = {fixed(h_q), fixed(a.W), fixed(a.S), fixed(h), fixed(a.e), c.now, {},
                            a.Q, a.Q_S, a.inner};
    answer_back<T>(s.exact(m), answers, dy, {dh_q, dW, dS, dh, de, to.now});
    for (long t = 0; t < m; t++)
        unit_back<T>(hidden, &a.z_q(t, 0), &h_q(t, 0), length_q[t], &dh_q(t, 0), T(0), &dz_q(t, 0));
    // ---- the hidden layer's move
    if (s.forgets) copy<T>(m, hidden, fixed(dz_q), to.newborn);
    if (d_end.p) added<T>(s.back(), hidden, 1, d_end, dd.from(m));
    auto move_back = s.muon ? move_by_muon_back<T> : move_summed_back<T>;
    move_back(s, m, c, a, fixed(d), first, fixed(dz_q), to, known, dd, d_first);
    // ---- what taught it, and the output matrix
    T *d_length = room.numbers<T>(n);
    for (long i = 0; i < n; i++) {
        TaughtRow<T> of = {&dd(i, 0), &d(i, 0), &a.dh(i, 0), &h(i, 0), &a.z(i, 0), norm[i],
                           a.length(i, 0)};
        d_length[i] = taught_back<T>(hidden, of, &d_passed(i, 0), &dh(i, 0), &dz(i, 0), row, true);
    }
    teach_exactly<T>(s.exact(m), exactly<T>(c, a, h),
                     {de, known.W, known.S, dh, to.target, to.before, to.now, to.momentum},
                     fixed(d_passed), fixed(dW), fixed(dS));
    for (long i = 0; i < n; i++)
        unit_back<T>(hidden, &a.z(i, 0), &h(i, 0), a.length(i, 0), &dh(i, 0), d_length[i], &dz(i, 0),
                     true);
    product<T>(n, s.D, hidden, fixed(dz), fixed(a.H), to.phi_k, true);
    product<T>(hidden, s.D, n, fixed(dz).turned(), c.phi_k, known.H, true);
}

// ---- a text --------------------------------------------------------------------------------------

// x = y, of those that there are.
template <class T>
static void copy_known(const TextSizes &s, const Known<T> &x, const Known<T> &o) {
    copy<T>(s.dv, s.hidden, fixed(x.W), o.W);
    if (x.S.p) copy<T>(s.dv, s.hidden, fixed(x.S), o.S);
    copy<T>(s.hidden, s.D, fixed(x.H), o.H);
    if (x.R.p) copy<T>(s.hidden, s.D, fixed(x.R), o.R);
}

// What was known at the start of the j-th chunk, of tensors that hold one below the other.
template <class T> static Known<T> known_at(const TextSizes &s, const Known<T> &all, long j) {
    auto at = [&](Matrix<T> x, long rows) { return x.p ? x.from(j * rows) : x; };
    return {at(all.W, s.dv), at(all.S, s.dv), at(all.H, s.hidden), at(all.R, s.hidden)};
}

// H_start, d_end: the hidden layer at the last chunk's start, and what its last pairs taught it. W, S,
// H, R are read, and left as they are behind the text. starts: what is known at every chunk's start.
template <class T> static void online_forward(Arguments a) {
    TextSizes s(a);
    Tensor<T> known[4], starts[4];
    for (auto &x : known) x = a.tensor<T>();
    auto H_start = a.tensor<T>(), d_end = a.tensor<T>(), y = a.tensor<T>();
    for (auto &x : starts) x = a.tensor<T>();
    auto first = a.tensor<const T>();
    Tensor<const T> in[STREAMS];
    for (auto &x : in) x = a.tensor<const T>();
    ALL_ROWS(a) {
        Room room;
        TextChunk<T> chunk(s, room);
        Known<T> now = {known[0].at(g), known[1].at(g), known[2].at(g), known[3].at(g)};
        Known<T> all = {starts[0].at(g), starts[1].at(g), starts[2].at(g), starts[3].at(g)};
        auto text = Text<const T>::of(in, g);
        for (long j = 0; j < s.chunks(); j++) {
            long begin = j * s.chunk, m = s.tokens - begin < s.chunk ? s.tokens - begin : s.chunk;
            bool last = j + 1 == s.chunks();
            copy_known<T>(s, now, {chunk.W, chunk.S, chunk.H, chunk.R});
            if (s.keeps) copy_known<T>(s, now, known_at<T>(s, all, j));
            if (last) copy<T>(s.hidden, s.D, fixed(now.H), H_start.at(g));
            read_chunk<T>(s, m, text.at(s, begin, j), chunk, first.at(g), now,
                          last && s.back() ? d_end.at(g) : Matrix<T>{}, y.at(g).from(begin));
        }
    }
}
KERNEL(online_forward)

// Chunks are read again: what they made would take longer to fetch. dW, dS, dH, dR come in as
// gradients behind the text, and go out as those at its start.
template <class T> static void online_backward(Arguments a) {
    TextSizes s(a);
    auto dy = a.tensor<const T>();
    Tensor<T> d_known[4], starts[4];
    for (auto &x : d_known) x = a.tensor<T>();
    auto dH_start = a.tensor<const T>(), d_end = a.tensor<const T>();
    for (auto &x : starts) x = a.tensor<T>();
    auto d_first = a.tensor<T>();
    auto first = a.tensor<const T>();
    Tensor<const T> in[STREAMS];
    Tensor<T> out[STREAMS];
    for (auto &x : in) x = a.tensor<const T>();
    for (auto &x : out) x = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        TextChunk<T> chunk(s, room);
        auto y = room.matrix<T>(s.chunk, s.dv), H = room.matrix<T>(s.hidden, s.D);
        auto R = room.matrix<T>(s.hidden, s.D), W = room.matrix<T>(s.dv, s.hidden);
        auto S = room.matrix<T>(s.dv, s.hidden);
        Known<T> d = {d_known[0].at(g), d_known[1].at(g), d_known[2].at(g), d_known[3].at(g)};
        Known<T> all = {starts[0].at(g), starts[1].at(g), starts[2].at(g), starts[3].at(g)};
        auto text = Text<const T>::of(in, g);
        auto to = Text<T>::of(out, g);
        for (long j = s.chunks() - 1; j >= 0; j--) {
            long begin = j * s.chunk, m = s.tokens - begin < s.chunk ? s.tokens - begin : s.chunk;
            bool last = j + 1 == s.chunks();
            copy_known<T>(s, known_at<T>(s, all, j), {chunk.W, chunk.S, chunk.H, chunk.R});
            auto here = text.at(s, begin, j);
            read_chunk<T>(s, m, here, chunk, first.at(g), {W, S, H, R}, Matrix<T>{}, y);
            teach_chunk<T>(s, m, here, chunk, first.at(g), dy.at(g).from(begin),
                           last ? d_end.at(g) : Matrix<const T>{}, to.at(s, begin, j), d,
                           d_first.at(g));
            if (last && dH_start) added<T>(s.hidden, s.D, 1, dH_start.at(g), d.H);
        }
    }
}
KERNEL(online_backward)
