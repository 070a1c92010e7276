// A text read by a memory that is written exactly, chunk by chunk, where no gradient is asked for.
// online_chunk.py, learner.py
#pragma once

// hidden: width of the hidden layer. Muon: steps every `period` tokens, and `rows` of T and P a chunk.
struct TextSizes {
    long tokens, chunk, run, window, D, hidden, dv, heavy, forgets, muon, period, rows;
    Polynomial polynomial;
    explicit TextSizes(Arguments &a)
        : tokens(a.size()), chunk(a.size()), run(a.size()), window(a.size()), D(a.size()),
          hidden(a.size()), dv(a.size()), heavy(a.size()), forgets(a.size()), muon(a.size()),
          period(a.size()), rows(a.size()), polynomial(a) {}
    long back() const { return window - 1; }
    long pairs() const { return chunk + back(); }
    long runs() const { return (chunk + run - 1) / run; }
    Sizes exact(long m) const { return {m, run, window, hidden, dv, heavy, back()}; }
};

// Streams of a text [tokens, ..], those of Muon's steps by chunk; names as in learner.py.
template <class T> struct Text {
    Matrix<const T> phi_k, target, now, before, momentum;
    Matrix<const T> A, C, B, kept, P, E, since;  // kept: T, what is left of R
    Matrix<const T> phi_q, asked, newborn, first;
    Matrix<T> y;
};

// W (and S) of the output, H and its momentum R of the hidden layer: known before and behind a text.
template <class T> struct Known {
    Matrix<T> W, S, H, R;
};

// What a chunk makes by the way.
template <class T> struct Made {
    Matrix<T> z, h, length, dh, d, W, S, e, P, P_S, G, e_old, Q, Q_S, inner, weighted;
    Matrix<T> differs, other, stepped, moved;
    Made(Room &room, const TextSizes &s) {
        long n = s.pairs(), runs = s.runs(), pairs = s.run + s.back();
        z = room.matrix<T>(n, s.hidden);
        h = room.matrix<T>(n, s.hidden);
        dh = room.matrix<T>(n, s.hidden);
        d = room.matrix<T>(n, s.hidden);
        length = room.matrix<T>(n, 1);
        W = room.matrix<T>((runs + 1) * s.dv, s.hidden);
        S = room.matrix<T>((runs + 1) * s.dv, s.hidden);
        e = room.matrix<T>(s.chunk * s.window, s.dv);
        P = room.matrix<T>(runs * pairs, s.dv);
        P_S = room.matrix<T>(runs * pairs, s.dv);
        G = room.matrix<T>(runs * pairs, pairs);
        e_old = room.matrix<T>(s.window, s.dv);
        Q = room.matrix<T>(s.chunk, s.dv);
        Q_S = room.matrix<T>(s.chunk, s.dv);
        inner = room.matrix<T>(s.chunk, pairs);
        weighted = room.matrix<T>(s.chunk, n);
        differs = room.matrix<T>(s.hidden, s.D);
        other = room.matrix<T>(s.hidden, s.D);
        moved = room.matrix<T>(s.hidden, s.D);
        long steps = s.muon ? s.chunk / s.period : 0;
        stepped = room.matrix<T>((2 * steps + 1) * s.hidden, s.D);
    }
};

template <class T> static void copy(long rows, long n, Matrix<const T> x, Matrix<T> o) {
    for (long i = 0; i < rows; i++) scaled<T>(n, 1, &x(i, 0), &o(i, 0));
}

// o = first + share (H - first): H where the share is 1.
template <class T>
static void left(long rows, long n, T share, Matrix<const T> first, Matrix<const T> H, Matrix<T> o) {
    for (long i = 0; i < rows; i++) {
        const T *a = &first(i, 0), *b = &H(i, 0);
        T *to = &o(i, 0);
        for (long j = 0; j < n; j++)
            to[j] = share < T(0.5) ? a[j] + share * (b[j] - a[j]) : b[j] - (b[j] - a[j]) * (1 - share);
    }
}

// H - H_0, of which queries read what is left; without forgetting they read H.
template <class T>
static void apart(const TextSizes &s, Matrix<const T> H, Matrix<const T> first, Matrix<T> o) {
    for (long i = 0; i < s.hidden; i++)
        if (s.forgets)
            minus<T>(s.D, &H(i, 0), &first(i, 0), &o(i, 0));
        else
            scaled<T>(s.D, 1, &H(i, 0), &o(i, 0));
}

// o = share M + sum_i weights_i d_i (x) x_i
template <class T>
static void written_onto(const TextSizes &s, long n, const T *weights, Matrix<const T> d,
                         Matrix<const T> x, Matrix<T> o) {
    Room room;
    auto weighted = room.matrix<T>(n, s.hidden);
    for (long i = 0; i < n; i++) scaled<T>(s.hidden, weights[i], &d(i, 0), &weighted(i, 0));
    product<T>(s.hidden, s.D, n, fixed(weighted).turned(), x, o, true);
}

// What queries find: z = newborn + A (H - H_0) phi + B R phi + sum_i C [t, i] (x_i . phi) d_i, and
// H and R behind the chunk.
template <class T>
static void move_summed(const TextSizes &s, long m, const Text<T> &c, const Made<T> &a,
                        const Known<T> &known) {
    long n = m + s.back();
    auto H = fixed(known.H), R = fixed(known.R), d = fixed(a.d);
    apart<T>(s, H, c.first, a.differs);
    product<T>(m, s.hidden, s.D, c.asked, fixed(a.differs).turned(), a.z, true);
    if (s.heavy) {
        product<T>(m, s.hidden, s.D, c.phi_q, R.turned(), a.dh);
        for (long t = 0; t < m; t++) scaled<T>(s.hidden, c.B(t, 0), &a.dh(t, 0), &a.z(t, 0), true);
    }
    product<T>(m, n, s.D, c.phi_q, c.phi_k.turned(), a.weighted);
    for (long t = 0; t < m; t++) times<T>(n, &a.weighted(t, 0), &c.C(t, 0), &a.weighted(t, 0));
    product<T>(m, s.hidden, n, fixed(a.weighted), d, a.z, true);
    T share = s.forgets ? c.A(m - 1, 0) : T(1);
    left<T>(s.hidden, s.D, share, c.first, H, known.H);
    if (s.heavy)
        for (long i = 0; i < s.hidden; i++)
            scaled<T>(s.D, c.B(m - 1, 0), &R(i, 0), &known.H(i, 0), true);
    written_onto<T>(s, n, &c.C(m - 1, 0), d, c.phi_k, known.H);
    if (s.heavy) {
        weigh<T>(s.hidden, s.D, c.kept(m - 1, 0), R, known.R);
        written_onto<T>(s, n, &c.P(m - 1, 0), d, c.phi_k, known.R);
    }
}

// The same for Muon: a matrix for every stretch of tokens, H = A H' + (1 - A) H_0 + sum_r E_r NS(R_r).
template <class T>
static void move_by_muon(const TextSizes &s, long m, const Text<T> &c, const Made<T> &a,
                         const Known<T> &known) {
    long n = m + s.back(), steps = m / s.period, size = s.hidden;
    auto d = fixed(a.d), R = fixed(known.R);
    bool last = steps && m % s.period == 0;  // the last token steps
    auto H_of = [&](long r) { return a.stepped.from(r * size); };
    auto N_of = [&](long r) { return a.stepped.from((s.chunk / s.period + 1 + r) * size); };
    copy<T>(size, s.D, fixed(known.H), H_of(0));
    for (long r = 0; r < steps; r++) {
        weigh<T>(size, s.D, c.kept(r, 0), R, a.other);
        written_onto<T>(s, n, &c.P(r, 0), d, c.phi_k, a.other);
        newton_schulz<T>(s.polynomial, size, s.D, fixed(a.other), N_of(r));
        left<T>(size, s.D, s.forgets ? c.A(r, 0) : T(1), c.first, fixed(H_of(0)), H_of(r + 1));
        for (long p = 0; p <= r; p++)
            for (long i = 0; i < size; i++)
                scaled<T>(s.D, c.E(r, p), &N_of(p)(i, 0), &H_of(r + 1)(i, 0), true);
    }
    if (last) {
        copy<T>(size, s.D, fixed(a.other), known.R);
    } else {
        weigh<T>(size, s.D, c.kept(s.rows - 1, 0), R, known.R);
        written_onto<T>(s, n, &c.P(s.rows - 1, 0), d, c.phi_k, known.R);
    }
    T share = s.forgets && !last ? c.since(m - 1, 0) : T(1);
    left<T>(size, s.D, share, c.first, fixed(H_of(steps)), known.H);
    for (long r = 0, begin = 0; r <= steps; r++) {
        long end = r < steps ? (r + 1) * s.period - 1 : m;
        apart<T>(s, fixed(H_of(r)), c.first, a.differs);
        product<T>(end - begin, size, s.D, c.asked.from(begin), fixed(a.differs).turned(),
                   a.z.from(begin), true);
        begin = end;
    }
}

template <class T>
static void read_chunk(const TextSizes &s, long m, const Text<T> &c, const Made<T> &a,
                       const Known<T> &known) {
    long n = m + s.back(), runs = (m + s.run - 1) / s.run;
    auto heavy = [&](Matrix<T> x) { return s.heavy ? x : Matrix<T>{}; };
    product<T>(n, s.hidden, s.D, c.phi_k, fixed(known.H).turned(), a.z);
    for (long i = 0; i < n; i++) a.length(i, 0) = unit<T>(s.hidden, &a.z(i, 0), &a.h(i, 0));
    copy<T>(s.dv, s.hidden, fixed(known.W), a.W);
    if (s.heavy) copy<T>(s.dv, s.hidden, fixed(known.S), a.S);
    Sizes of = s.exact(m);
    write_exactly<T>(of, {a.W, heavy(a.S), fixed(a.h), c.target, c.before, c.now, c.momentum, a.e,
                          a.dh, a.P, heavy(a.P_S), a.G, a.e_old});
    for (long i = 0; i < n; i++)
        taught<T>(s.hidden, &a.dh(i, 0), &a.h(i, 0), a.length(i, 0), &a.z(i, 0), &a.d(i, 0));
    for (long t = 0; t < m; t++)
        if (s.forgets)
            scaled<T>(s.hidden, 1, &c.newborn(t, 0), &a.z(t, 0));
        else
            clear<T>(s.hidden, &a.z(t, 0));
    if (s.muon)
        move_by_muon<T>(s, m, c, a, known);
    else
        move_summed<T>(s, m, c, a, known);
    auto h_q = a.dh;
    for (long t = 0; t < m; t++) unit<T>(s.hidden, &a.z(t, 0), &h_q(t, 0));
    answer_exactly<T>(of, {fixed(h_q), fixed(a.W), fixed(heavy(a.S)), fixed(a.h), fixed(a.e), c.now,
                           c.y, a.Q, heavy(a.Q_S), a.inner});
    copy<T>(s.dv, s.hidden, fixed(a.W.from(runs * s.dv)), known.W);
    if (s.heavy) copy<T>(s.dv, s.hidden, fixed(a.S.from(runs * s.dv)), known.S);
}

// The part of a text that begins at a token, the block-th one.
template <class T>
static Text<T> from(const TextSizes &s, const Text<T> &x, long begin, long block) {
    long step = block * (s.muon ? s.chunk / s.period : 0);
    auto summed = [&](Matrix<const T> a) { return a.p ? a.from(s.muon ? step : begin) : a; };
    auto kept = [&](Matrix<const T> a) { return a.p ? a.from(s.muon ? block * s.rows : begin) : a; };
    auto there = [&](Matrix<const T> a) { return a.p ? a.from(begin) : a; };
    return {x.phi_k.from(begin), x.target.from(begin), x.now.from(begin), x.before.from(begin),
            there(x.momentum), summed(x.A), there(x.C), there(x.B), kept(x.kept), kept(x.P),
            summed(x.E), there(x.since), there(x.phi_q), x.asked.from(begin), there(x.newborn),
            x.first, x.y.from(begin)};
}

// W, S, H and R are read and left as they are behind the text. H_start and d [g, back, hidden]: the
// hidden layer at the last chunk's start, and what its last pairs taught it.
template <class T> static void online_forward(Arguments a) {
    TextSizes s(a);
    auto W = a.tensor<T>(), S = a.tensor<T>(), H = a.tensor<T>(), R = a.tensor<T>();
    auto H_start = a.tensor<T>(), d = a.tensor<T>(), y = a.tensor<T>();
    Tensor<const T> in[16];
    for (auto &x : in) x = a.tensor<const T>();
    ALL_ROWS(a) {
        Room room;
        Made<T> made(room, s);
        Known<T> known = {W.at(g), S.at(g), H.at(g), R.at(g)};
        auto at = [&](int i) { return in[i].at(g); };
        Text<T> text = {at(0), at(1), at(2),  at(3),  at(4),  at(5),  at(6),  at(7), at(8),
                        at(9), at(10), at(11), at(12), at(13), at(14), at(15), y.at(g)};
        for (long begin = 0, block = 0; begin < s.tokens; begin += s.chunk, block++) {
            long m = s.tokens - begin < s.chunk ? s.tokens - begin : s.chunk;
            bool last = begin + m == s.tokens;
            if (last) copy<T>(s.hidden, s.D, fixed(known.H), H_start.at(g));
            read_chunk<T>(s, m, from<T>(s, text, begin, block), made, known);
            if (last) copy<T>(s.back(), s.hidden, fixed(made.d.from(m)), d.at(g));
        }
    }
}
KERNEL(online_forward)
