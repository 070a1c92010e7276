// Steps that are written exactly: runs of tokens solved at once, carried on, and read.   linear.py
//
// What stands there for every unknown (t, j), the pair t - j in step t, is made here once for every
// pair and dealt out to the unknowns in cache: windows overlap, so there are fewer of them.
#pragma once

struct Sizes {
    // older: pairs in front of the chunk that learn from its start
    long tokens, run, window, D, dv, momentum, older;
    explicit Sizes(Arguments &a)
        : tokens(a.size()), run(a.size()), window(a.size()), D(a.size()), dv(a.size()),
          momentum(a.size()), older(a.size()) {}
    Sizes(long tokens, long run, long window, long D, long dv, long momentum, long older)
        : tokens(tokens), run(run), window(window), D(D), dv(dv), momentum(momentum),
          older(older) {}
    long runs() const { return (tokens + run - 1) / run; }
    long old() const { return momentum ? 2 * dv : dv; }  // columns of the matrices carried
    long pairs() const { return run + window - 1; }
};

// One run: m tokens from `begin`; its unknowns u = t c + j, and the pair that each of them is.
struct Run {
    long begin, m, c, unknowns, pairs;
    Run(const Sizes &s, long r)
        : begin(r * s.run), m(s.tokens - begin < s.run ? s.tokens - begin : s.run), c(s.window),
          unknowns(m * c), pairs(m + c - 1) {}
    long pair(long u) const { return u / c + c - 1 - u % c; }

    // o[u] = found[pair of u] for the unknowns of the first n tokens.
    template <class T> void deal(long n, const T *found, T *o) const {
        switch (c) {
        case 1: return dealt<T, 1>(n, 1, found, o);
        case 2: return dealt<T, 2>(n, 2, found, o);
        case 4: return dealt<T, 4>(n, 4, found, o);
        default: return dealt<T, 0>(n, c, found, o);
        }
    }
    // The inverse: what unknowns give to their pairs, added up.
    template <class T> void gather(long n, const T *given, T *o) const {
        switch (c) {
        case 1: return gathered<T, 1>(n, 1, given, o);
        case 2: return gathered<T, 2>(n, 2, given, o);
        case 4: return gathered<T, 4>(n, 4, given, o);
        default: return gathered<T, 0>(n, c, given, o);
        }
    }

  private:
    // C: the window where a compiler should know it, or 0.
    template <class T, int C>
    static void dealt(long n, long window, const T *__restrict found, T *__restrict o) {
        const long c = C ? C : window;
        for (long s = 0; s < n; s++)
            for (long j = 0; j < c; j++) o[s * c + j] = found[s + c - 1 - j];
    }
    template <class T, int C>
    static void gathered(long n, long window, const T *__restrict given, T *__restrict o) {
        const long c = C ? C : window;
        auto some = [&](long p) {  // near the ends, where steps have no pair or pairs no step
            for (long j = 0; j < c; j++) {
                long s = p - c + 1 + j;
                if (s >= 0 && s < n) o[p] += given[s * c + j];
            }
        };
        for (long p = 0; p < c - 1; p++) some(p);
        for (long p = c - 1; p < n; p++) {
            T sum = 0;
            for (long j = 0; j < c; j++) sum += given[(p - c + 1 + j) * c + j];
            o[p] += sum;
        }
        for (long p = n > c - 1 ? n : c - 1; p < n + c - 1; p++) some(p);
    }
};

template <class T> static void clear(long n, T *x) {
    for (long i = 0; i < n; i++) x[i] = 0;
}
template <class T> static void clear(long rows, long columns, Matrix<T> x) {
    for (long i = 0; i < rows; i++) clear<T>(columns, &x(i, 0));
}

constexpr long SOLVED = 8;  // unknowns that are solved one by one, behind a product of all before

// e <- (1 - N)^-1 e, N strictly lower triangular.
template <class T> static void solve_down(long n, long dv, Matrix<const T> N, Matrix<T> e) {
    for (long begin = 0; begin < n; begin += SOLVED) {
        long end = begin + SOLVED < n ? begin + SOLVED : n;
        product_exact<T>(end - begin, dv, begin, N.from(begin), fixed(e), e.from(begin), true);
        for (long i = begin + 1; i < end; i++)
            for (long j = begin; j < i; j++) scaled<T>(dv, N(i, j), &e(j, 0), &e(i, 0), true);
    }
}

// e <- (1 - N^T)^-1 e
template <class T> static void solve_up(long n, long dv, Matrix<const T> N, Matrix<T> e) {
    for (long end = n; end > 0;) {
        long begin = end > SOLVED ? end - SOLVED : 0;
        product_exact<T>(end - begin, dv, n - end, N.from(end, begin).turned(), fixed(e.from(end)),
                         e.from(begin), true);
        for (long i = end - 1; i > begin; i--)
            for (long j = begin; j < i; j++) scaled<T>(dv, N(i, j), &e(i, 0), &e(j, 0), true);
        end = begin;
    }
}

// N[u, u'] = -before[t, u'] <x_u, x_u'> for u' of an earlier token, from G = X X^T of the pairs.
template <class T>
static void system_of(const Run &r, Matrix<const T> before, Matrix<const T> G, Matrix<T> N) {
    for (long u = 0; u < r.unknowns; u++) {
        long t = u / r.c, earlier = t * r.c;
        const T *weights = &before(t, 0);
        T *o = &N(u, 0);
        r.deal<T>(t, &G(r.pair(u), 0), o);
        for (long i = 0; i < earlier; i++) o[i] *= -weights[i];
        clear<T>(u - earlier, o + earlier);
    }
}

// The rows of a matrix, each times its own weight.
template <class T>
static void weigh_rows(long rows, long n, const T *weights, Matrix<const T> W, Matrix<T> o,
                       bool add = false) {
    for (long i = 0; i < rows; i++) scaled<T>(n, weights[i], &W(i, 0), &o(i, 0), add);
}

// sum_u weights_u e_u for every pair, [pairs, dv].
template <class T>
static void written(const Run &r, long dv, const T *weights, Matrix<const T> e, Matrix<T> o) {
    clear<T>(r.pairs, dv, o);
    for (long u = 0; u < r.unknowns; u++)
        scaled<T>(dv, weights[u], &e(u, 0), &o(r.pair(u), 0), true);
}

// The weights of what errors send back: before[t, u] <e_t, e_u>, of pairs [m, pairs]. E: <e_t, e_u>.
template <class T>
static void sent_back(const Run &r, Matrix<const T> before, Matrix<const T> E, Matrix<T> F, T *row) {
    clear<T>(r.m, r.pairs, F);
    for (long t = 0; t < r.m; t++) {
        times<T>(t * r.c, &E(t, 0), &before(t, 0), row);
        r.gather<T>(t, row, &F(t, 0));
    }
}

// Errors e [tokens c, dv], W~^T e [older + tokens, D], and W (and S) at the start of every run and
// behind the last one [(runs + 1) dv, D], the first of which is given. P, P_S: what the matrices say
// of every pair of a run; G: inner products of its pairs; e_old: errors of the older pairs, at the
// chunk's start.
template <class T> struct ExactRow {
    Matrix<T> W, S;
    Matrix<const T> X, v, before, now, momentum;
    Matrix<T> e, passed, P, P_S, G, e_old;
};

// The errors of a run.
template <class T>
static void solve_run(const Sizes &s, const Run &r, const ExactRow<T> &a, Matrix<T> P, Matrix<T> P_S,
                      Matrix<T> G, Matrix<const T> W, Matrix<const T> S, Matrix<T> N) {
    long D = s.D, dv = s.dv;
    auto x = a.X.from(r.begin), b = a.before.from(r.begin);
    auto out = a.e.from(r.begin * r.c);
    product<T>(r.pairs, dv, D, x, W.turned(), P);
    product<T>(r.pairs, r.pairs, D, x, x.turned(), G);
    if (s.momentum) product<T>(r.pairs, dv, D, x, S.turned(), P_S);
    for (long u = 0; u < r.unknowns; u++) {
        const T *weights = &b(u / r.c, 0), *target = &a.v(r.begin + r.pair(u), 0);
        const T *said = &P(r.pair(u), 0);
        T *error = &out(u, 0);
        for (long k = 0; k < dv; k++) error[k] = target[k] - weights[k] * said[k];
        if (s.momentum) {
            said = &P_S(r.pair(u), 0);
            for (long k = 0; k < dv; k++) error[k] -= weights[dv + k] * said[k];
        }
    }
    system_of<T>(r, b.from(0, s.old()), fixed(G), N);
    solve_down<T>(r.unknowns, dv, fixed(N), out);
}

// W~^T e of every token's own error.
template <class T>
static void send_back(const Sizes &s, const Run &r, const ExactRow<T> &a, Matrix<const T> W,
                      Matrix<const T> S) {
    Room room;
    auto E = room.matrix<T>(s.run, s.run * s.window), F = room.matrix<T>(s.run, s.pairs());
    auto own = room.matrix<T>(s.run, s.dv);
    T *row = room.numbers<T>(s.run * s.window);
    auto out = fixed(a.e.from(r.begin * r.c)), b = a.before.from(r.begin);
    auto back = a.passed.from(s.older + r.begin);
    Matrix<const T> first = {out.p, out.row * r.c, 1};
    product<T>(r.m, r.unknowns, s.dv, first, out.turned(), E);
    sent_back<T>(r, b.from(0, s.old()), fixed(E), F, row);
    product<T>(r.m, s.D, r.pairs, fixed(F), a.X.from(r.begin), back);
    for (long part = 0; part < s.old(); part += s.dv) {
        for (long t = 0; t < r.m; t++) times<T>(s.dv, &b(t, part), &first(t, 0), &own(t, 0));
        product<T>(r.m, s.D, s.dv, fixed(own), part ? S : W, back, true);
    }
}

// W (and S) behind a run.
template <class T>
static void carry_on(const Sizes &s, const Run &r, const ExactRow<T> &a, Matrix<const T> W,
                     Matrix<const T> S, Matrix<T> W_after, Matrix<T> S_after) {
    Room room;
    auto sums = room.matrix<T>(s.pairs(), s.dv);
    auto out = fixed(a.e.from(r.begin * r.c)), x = a.X.from(r.begin);
    const T *last = &a.now(r.begin + r.m - 1, 0);
    weigh_rows<T>(s.dv, s.D, last, W, W_after);
    written<T>(r, s.dv, last + s.old(), out, sums);
    if (s.momentum) weigh_rows<T>(s.dv, s.D, last + s.dv, S, W_after, true);
    product<T>(s.dv, s.D, r.pairs, fixed(sums).turned(), x, W_after, true);
    if (s.momentum) {
        const T *kept = &a.momentum(r.begin + r.m - 1, 0);
        weigh_rows<T>(s.dv, s.D, kept, S, S_after);
        written<T>(r, s.dv, kept + s.dv, out, sums);
        product<T>(s.dv, s.D, r.pairs, fixed(sums).turned(), x, S_after, true);
    }
}

template <class T> static void write_exactly(const Sizes &s, const ExactRow<T> &a) {
    Room room;
    long dv = s.dv;
    auto N = room.matrix<T>(s.run * s.window, s.run * s.window);
    for (long i = 0; i < s.runs(); i++) {
        Run r(s, i);
        auto W = fixed(a.W.from(i * dv)), S = s.momentum ? fixed(a.S.from(i * dv)) : W;
        auto S_after = s.momentum ? a.S.from((i + 1) * dv) : a.S;
        auto P = a.P.from(i * s.pairs()), P_S = s.momentum ? a.P_S.from(i * s.pairs()) : P;
        solve_run<T>(s, r, a, P, P_S, a.G.from(i * s.pairs()), W, S, N);
        if (i == 0 && s.older) {
            for (long k = 0; k < s.older; k++) minus<T>(dv, &a.v(k, 0), &P(k, 0), &a.e_old(k, 0));
            product<T>(s.older, s.D, dv, fixed(a.e_old), W, a.passed);
        }
        if (a.passed.p) send_back<T>(s, r, a, W, S);
        carry_on<T>(s, r, a, W, S, a.W.from((i + 1) * dv), S_after);
    }
}

template <class T> static void exact_forward(Arguments a) {
    Sizes s(a);
    auto W = a.tensor<T>(), S = a.tensor<T>();
    auto X = a.tensor<const T>(), v = a.tensor<const T>();
    auto before = a.tensor<const T>(), now = a.tensor<const T>(), momentum = a.tensor<const T>();
    auto e = a.tensor<T>(), passed = a.tensor<T>();
    auto P = a.tensor<T>(), P_S = a.tensor<T>(), G = a.tensor<T>(), e_old = a.tensor<T>();
    ALL_ROWS(a) write_exactly<T>(s, {W.at(g), S.at(g), X.at(g), v.at(g), before.at(g), now.at(g),
                                     momentum.at(g), e.at(g), passed.at(g), P.at(g), P_S.at(g),
                                     G.at(g), e_old.at(g)});
}
KERNEL(exact_forward)

// Gradients of a matrix carried and of its weight of every row, for rows weight_r * W_r.
template <class T>
static void weigh_rows_backward(long rows, long n, const T *weights, Matrix<const T> W,
                                Matrix<const T> given, Matrix<T> dW, T *d_weights, bool add) {
    for (long i = 0; i < rows; i++) {
        d_weights[i] += dot<T>(n, &given(i, 0), &W(i, 0));
        scaled<T>(n, weights[i], &given(i, 0), &dW(i, 0), add);
    }
}

// dX += sums dW, and what X dW^T says to the errors and weights of `written`.
template <class T>
static void written_backward(const Run &r, long dv, long D, const T *weights, Matrix<const T> e,
                             Matrix<const T> x, Matrix<const T> dW, Matrix<T> dx, Matrix<T> de,
                             T *d_weights, Matrix<T> sums, Matrix<T> found) {
    written<T>(r, dv, weights, e, sums);
    product<T>(r.pairs, D, dv, fixed(sums), dW, dx, true);
    product<T>(r.pairs, dv, D, x, dW.turned(), found);
    for (long u = 0; u < r.unknowns; u++) {
        const T *z = &found(r.pair(u), 0);
        scaled<T>(dv, weights[u], z, &de(u, 0), true);
        d_weights[u] += dot<T>(dv, &e(u, 0), z);
    }
}

// What a matrix that is read backwards by every token's own error gives: own = weights * e, and
// passed = own W.
template <class T>
static void passed_by_matrix(const Run &r, long dv, long D, Matrix<const T> dp, Matrix<const T> W,
                             Matrix<const T> weights, Matrix<const T> first, Matrix<T> d_weights,
                             Matrix<T> d_first, Matrix<T> dW, Matrix<T> own, Matrix<T> found) {
    product<T>(r.m, dv, D, dp, W.turned(), found);
    for (long t = 0; t < r.m; t++) {
        times<T>(dv, &first(t, 0), &found(t, 0), &d_weights(t, 0), true);
        times<T>(dv, &weights(t, 0), &found(t, 0), &d_first(t, 0), true);
        times<T>(dv, &weights(t, 0), &first(t, 0), &own(t, 0));
    }
    product<T>(dv, D, r.m, fixed(own).turned(), dp, dW, true);
}

// What a matrix W says of the pairs, P = X W^T, is taken from targets: gradients of weights and P.
template <class T>
static void told_backward(const Run &r, long dv, Matrix<const T> g, Matrix<const T> weights,
                          Matrix<const T> P, Matrix<T> d_weights, Matrix<T> dP) {
    clear<T>(r.pairs, dv, dP);
    for (long u = 0; u < r.unknowns; u++) {
        const T *given = &g(u, 0), *own = &weights(u / r.c, 0), *said = &P(r.pair(u), 0);
        T *to_weights = &d_weights(u / r.c, 0), *to_P = &dP(r.pair(u), 0);
        for (long k = 0; k < dv; k++) {
            to_weights[k] -= given[k] * said[k];
            to_P[k] -= given[k] * own[k];
        }
    }
}

// With g = (1 - N)^-T de in the place of de: gradients of the weights and of G, both halves of it.
template <class T>
static void system_backward(const Run &r, Matrix<const T> before, Matrix<const T> G,
                            Matrix<const T> found, Matrix<T> d_before, Matrix<T> dG, T *row) {
    clear<T>(r.pairs, r.pairs, dG);
    for (long u = r.c; u < r.unknowns; u++) {
        long t = u / r.c, earlier = t * r.c, p = r.pair(u);
        r.deal<T>(t, &G(p, 0), row);
        const T *given = &found(u, 0), *weights = &before(t, 0);
        T *to_weights = &d_before(t, 0);
        for (long i = 0; i < earlier; i++) {
            to_weights[i] -= given[i] * row[i];
            row[i] = -given[i] * weights[i];
        }
        r.gather<T>(t, row, &dG(p, 0));
    }
    for (long i = 0; i < r.pairs; i++)
        for (long j = 0; j <= i; j++) dG(i, j) = dG(j, i) = dG(i, j) + dG(j, i);
}

// passed = e W of the older pairs, whose errors are e = v - X W^T.
template <class T>
static void older_backward(const Sizes &s, Matrix<const T> dp, Matrix<const T> W, Matrix<const T> X,
                           Matrix<const T> e, Matrix<T> dW, Matrix<T> dX, Matrix<T> d_v,
                           Matrix<T> de, Matrix<T> taken) {
    product<T>(s.older, s.dv, s.D, dp, W.turned(), de);
    product<T>(s.dv, s.D, s.older, e.turned(), dp, dW, true);
    for (long k = 0; k < s.older; k++) {
        scaled<T>(s.dv, 1, &de(k, 0), &d_v(k, 0), true);
        scaled<T>(s.dv, -1, &de(k, 0), &taken(k, 0));
    }
    product<T>(s.older, s.D, s.dv, fixed(taken), W, dX, true);
    product<T>(s.dv, s.D, s.older, fixed(taken).turned(), X, dW, true);
}

// e, W and S come in as gradients of the errors and of the matrices behind the last run; W and S go
// out as those at the start, and all others are added to.
template <class T> struct ExactGradients {
    Matrix<T> e, W, S, X, v, before, now, momentum;
};

// Gradients of what a run leaves behind.
template <class T>
static void carry_back(const Sizes &s, const Run &r, const ExactRow<T> &a,
                       const ExactGradients<T> &to, Matrix<const T> W, Matrix<const T> S) {
    Room room;
    long D = s.D, dv = s.dv, old = s.old();
    auto own = room.matrix<T>(s.pairs(), dv), found = room.matrix<T>(s.pairs(), dv);
    auto moved = room.matrix<T>(dv, D);
    auto error = fixed(a.e.from(r.begin * r.c)), x = a.X.from(r.begin);
    auto d_error = to.e.from(r.begin * r.c), dx = to.X.from(r.begin);
    const T *last = &a.now(r.begin + r.m - 1, 0);
    T *d_last = &to.now(r.begin + r.m - 1, 0);
    written_backward<T>(r, dv, D, last + old, error, x, fixed(to.W), dx, d_error, d_last + old, own,
                        found);
    if (s.momentum) {
        const T *kept = &a.momentum(r.begin + r.m - 1, 0);
        T *d_kept = &to.momentum(r.begin + r.m - 1, 0);
        written_backward<T>(r, dv, D, kept + dv, error, x, fixed(to.S), dx, d_error, d_kept + dv,
                            own, found);
        weigh_rows_backward<T>(dv, D, kept, S, fixed(to.S), moved, d_kept, false);
        weigh_rows_backward<T>(dv, D, last + dv, S, fixed(to.W), moved, d_last + dv, true);
        for (long k = 0; k < dv; k++) scaled<T>(D, 1, &moved(k, 0), &to.S(k, 0));
    }
    weigh_rows_backward<T>(dv, D, last, W, fixed(to.W), moved, d_last, false);
    for (long k = 0; k < dv; k++) scaled<T>(D, 1, &moved(k, 0), &to.W(k, 0));
}

// Gradients of what every token's own error passes back.
template <class T>
static void sent_backward(const Sizes &s, const Run &r, const ExactRow<T> &a,
                          const ExactGradients<T> &to, Matrix<const T> dp, Matrix<const T> W,
                          Matrix<const T> S) {
    Room room;
    long D = s.D, dv = s.dv, c = s.window, old = s.old();
    auto E = room.matrix<T>(s.run, s.run * c), dE = room.matrix<T>(s.run, s.run * c);
    auto F = room.matrix<T>(s.run, s.pairs()), dF = room.matrix<T>(s.run, s.pairs());
    auto own = room.matrix<T>(s.pairs(), dv), found = room.matrix<T>(s.pairs(), dv);
    T *row = room.numbers<T>(s.run * c);
    auto error = fixed(a.e.from(r.begin * c)), x = a.X.from(r.begin), b = a.before.from(r.begin);
    auto d_error = to.e.from(r.begin * c), db = to.before.from(r.begin);
    auto dx = to.X.from(r.begin);
    Matrix<const T> first = {error.p, error.row * c, 1};
    Matrix<T> d_first = {d_error.p, d_error.row * c, 1};
    passed_by_matrix<T>(r, dv, D, dp, W, b, first, db, d_first, to.W, own, found);
    if (s.momentum)
        passed_by_matrix<T>(r, dv, D, dp, S, b.from(0, dv), first, db.from(0, dv), d_first, to.S,
                            own, found);
    product<T>(r.m, r.unknowns, dv, first, error.turned(), E);
    sent_back<T>(r, b.from(0, old), fixed(E), F, row);
    product<T>(r.pairs, D, r.m, fixed(F).turned(), dp, dx, true);
    product<T>(r.m, r.pairs, D, dp, x.turned(), dF);
    for (long t = 0; t < r.m; t++) {
        long earlier = t * c;
        r.deal<T>(t, &dF(t, 0), row);
        times<T>(earlier, row, &E(t, 0), &db(t, old), true);
        times<T>(earlier, row, &b(t, old), &dE(t, 0));
        clear<T>(r.unknowns - earlier, &dE(t, earlier));
    }
    product<T>(r.m, dv, r.unknowns, fixed(dE), error, d_first, true);
    product<T>(r.unknowns, dv, r.m, fixed(dE).turned(), first, d_error, true);
}

// Gradients of the errors of a run.
template <class T>
static void solve_back(const Sizes &s, const Run &r, const ExactRow<T> &a, const ExactGradients<T> &to,
                       Matrix<const T> P, Matrix<const T> P_S, Matrix<const T> G, Matrix<const T> W,
                       Matrix<const T> S) {
    Room room;
    long D = s.D, dv = s.dv, c = s.window, old = s.old();
    auto N = room.matrix<T>(s.run * c, s.run * c), dG = room.matrix<T>(s.pairs(), s.pairs());
    auto own = room.matrix<T>(s.pairs(), dv);
    T *row = room.numbers<T>(s.run * c);
    auto error = fixed(a.e.from(r.begin * c)), x = a.X.from(r.begin), b = a.before.from(r.begin);
    auto d_error = to.e.from(r.begin * c), db = to.before.from(r.begin);
    auto dx = to.X.from(r.begin);
    system_of<T>(r, b.from(0, old), G, N);
    solve_up<T>(r.unknowns, dv, fixed(N), d_error);
    product<T>(r.unknowns, r.unknowns, dv, fixed(d_error), error.turned(), N);
    system_backward<T>(r, b.from(0, old), G, fixed(N), db.from(0, old), dG, row);
    product<T>(r.pairs, D, r.pairs, fixed(dG), x, dx, true);
    told_backward<T>(r, dv, fixed(d_error), b, P, db, own);
    product<T>(r.pairs, D, dv, fixed(own), W, dx, true);
    product<T>(dv, D, r.pairs, fixed(own).turned(), x, to.W, true);
    if (s.momentum) {
        told_backward<T>(r, dv, fixed(d_error), b.from(0, dv), P_S, db.from(0, dv), own);
        product<T>(r.pairs, D, dv, fixed(own), S, dx, true);
        product<T>(dv, D, r.pairs, fixed(own).turned(), x, to.S, true);
    }
    for (long u = 0; u < r.unknowns; u++)
        scaled<T>(dv, 1, &d_error(u, 0), &to.v(r.begin + r.pair(u), 0), true);
}

// d_borders, dS_borders: of the matrices at every run's start.
template <class T>
static void teach_exactly(const Sizes &s, const ExactRow<T> &a, const ExactGradients<T> &to,
                          Matrix<const T> d_passed, Matrix<const T> d_borders,
                          Matrix<const T> dS_borders) {
    Room room;
    long dv = s.dv, pairs = s.pairs();
    for (long i = s.runs() - 1; i >= 0; i--) {
        Run r(s, i);
        auto W = fixed(a.W.from(i * dv)), S = s.momentum ? fixed(a.S.from(i * dv)) : W;
        auto P_S = s.momentum ? fixed(a.P_S.from(i * pairs)) : fixed(a.P_S);
        carry_back<T>(s, r, a, to, W, S);
        for (long k = 0; k < dv; k++) {
            if (d_borders.p) scaled<T>(s.D, 1, &d_borders(i * dv + k, 0), &to.W(k, 0), true);
            if (dS_borders.p) scaled<T>(s.D, 1, &dS_borders(i * dv + k, 0), &to.S(k, 0), true);
        }
        if (d_passed.p) sent_backward<T>(s, r, a, to, d_passed.from(s.older + r.begin), W, S);
        solve_back<T>(s, r, a, to, fixed(a.P.from(i * pairs)), P_S, fixed(a.G.from(i * pairs)), W, S);
    }
    if (s.older && d_passed.p) {
        auto de = room.matrix<T>(s.older, dv), taken = room.matrix<T>(s.older, dv);
        older_backward<T>(s, d_passed, fixed(a.W), a.X, fixed(a.e_old), to.W, to.X, to.v, de, taken);
    }
}

template <class T> static void exact_backward(Arguments a) {
    Sizes s(a);
    auto de = a.tensor<T>();
    auto d_passed = a.tensor<const T>(), d_borders = a.tensor<const T>();
    auto dS_borders = a.tensor<const T>();
    auto W = a.tensor<T>(), S = a.tensor<T>();
    auto X = a.tensor<const T>();
    auto before = a.tensor<const T>(), now = a.tensor<const T>(), momentum = a.tensor<const T>();
    auto e = a.tensor<T>(), P = a.tensor<T>(), P_S = a.tensor<T>(), G = a.tensor<T>();
    auto e_old = a.tensor<T>();
    auto dW = a.tensor<T>(), dS = a.tensor<T>(), dX = a.tensor<T>(), d_v = a.tensor<T>();
    auto d_before = a.tensor<T>(), d_now = a.tensor<T>(), d_momentum = a.tensor<T>();
    ALL_ROWS(a) {
        ExactRow<T> row = {W.at(g), S.at(g), X.at(g), {}, before.at(g), now.at(g), momentum.at(g),
                           e.at(g), {}, P.at(g), P_S.at(g), G.at(g), e_old.at(g)};
        ExactGradients<T> to = {de.at(g), dW.at(g), dS.at(g), dX.at(g), d_v.at(g), d_before.at(g),
                                d_now.at(g), d_momentum.at(g)};
        teach_exactly<T>(s, row, to, d_passed.at(g), d_borders.at(g), dS_borders.at(g));
    }
}
KERNEL(exact_backward)

// y_t = W_t h_t of every token. Q, Q_S: what the matrices at the runs' starts say; R: <h_t, x_p>.
template <class T> struct AnswerRow {
    Matrix<const T> h, W, S, X, e, now;
    Matrix<T> y, Q, Q_S, R;
};

template <class T> static void answer_exactly(const Sizes &s, const AnswerRow<T> &a) {
    Room room;
    long D = s.D, dv = s.dv, old = s.old();
    auto weighted = room.matrix<T>(s.run, s.run * s.window);
    for (long i = 0; i < s.runs(); i++) {
        Run r(s, i);
        auto asked = a.h.from(r.begin), x = a.X.from(r.begin), n = a.now.from(r.begin);
        auto q = a.Q.from(r.begin), inner = a.R.from(r.begin), out = a.y.from(r.begin);
        product<T>(r.m, dv, D, asked, a.W.from(i * dv).turned(), q);
        product<T>(r.m, r.pairs, D, asked, x.turned(), inner);
        for (long t = 0; t < r.m; t++) {
            times<T>(dv, &n(t, 0), &q(t, 0), &out(t, 0));
            r.deal<T>(r.m, &inner(t, 0), &weighted(t, 0));
            times<T>(r.unknowns, &weighted(t, 0), &n(t, old), &weighted(t, 0));
        }
        if (s.momentum) {
            auto q_s = a.Q_S.from(r.begin);
            product<T>(r.m, dv, D, asked, a.S.from(i * dv).turned(), q_s);
            for (long t = 0; t < r.m; t++)
                times<T>(dv, &n(t, dv), &q_s(t, 0), &out(t, 0), true);
        }
        auto errors = a.e.from(r.begin * s.window);
        product<T>(r.m, dv, r.unknowns, fixed(weighted), errors, out, true);
    }
}

template <class T> static void answer_forward(Arguments a) {
    Sizes s(a);
    auto h = a.tensor<const T>(), W = a.tensor<const T>(), S = a.tensor<const T>();
    auto X = a.tensor<const T>(), e = a.tensor<const T>(), now = a.tensor<const T>();
    auto y = a.tensor<T>(), Q = a.tensor<T>(), Q_S = a.tensor<T>(), R = a.tensor<T>();
    ALL_ROWS(a) answer_exactly<T>(s, {h.at(g), W.at(g), S.at(g), X.at(g), e.at(g), now.at(g),
                                      y.at(g), Q.at(g), Q_S.at(g), R.at(g)});
}
KERNEL(answer_forward)

// Gradients of what one matrix said, q = h W^T in y = weights * q.
template <class T>
static void said_backward(long m, long dv, long D, Matrix<const T> dy, Matrix<const T> weights,
                          Matrix<const T> q, Matrix<const T> h, Matrix<const T> W,
                          Matrix<T> d_weights, Matrix<T> dh, Matrix<T> dW, Matrix<T> dq) {
    for (long t = 0; t < m; t++) {
        times<T>(dv, &dy(t, 0), &q(t, 0), &d_weights(t, 0));
        times<T>(dv, &dy(t, 0), &weights(t, 0), &dq(t, 0));
    }
    product<T>(m, D, dv, fixed(dq), W, dh, true);
    product<T>(dv, D, m, fixed(dq).turned(), h, dW);
}

// X is added to; all others are laid down.
template <class T> struct AnswerGradients {
    Matrix<T> h, W, S, X, e, now;
};

template <class T>
static void answer_back(const Sizes &s, const AnswerRow<T> &a, Matrix<const T> dy,
                        const AnswerGradients<T> &to) {
    Room room;
    long D = s.D, dv = s.dv, old = s.old();
    auto weighted = room.matrix<T>(s.run, s.run * s.window);
    auto given = room.matrix<T>(s.run, s.run * s.window);
    auto dR = room.matrix<T>(s.run, s.pairs()), dq = room.matrix<T>(s.run, dv);
    T *row = room.numbers<T>(s.run * s.window);
    for (long i = 0; i < s.runs(); i++) {
        Run r(s, i);
        auto asked = a.h.from(r.begin), x = a.X.from(r.begin), n = a.now.from(r.begin);
        auto inner = a.R.from(r.begin);
        auto d_out = dy.from(r.begin), error = a.e.from(r.begin * s.window);
        auto dn = to.now.from(r.begin), d_asked = to.h.from(r.begin);
        product<T>(r.m, r.unknowns, dv, d_out, error.turned(), given);
        clear<T>(r.m, r.pairs, dR);
        for (long t = 0; t < r.m; t++) {
            r.deal<T>(r.m, &inner(t, 0), row);
            times<T>(r.unknowns, row, &given(t, 0), &dn(t, old));
            times<T>(r.unknowns, row, &n(t, old), &weighted(t, 0));
            times<T>(r.unknowns, &given(t, 0), &n(t, old), row);
            r.gather<T>(r.m, row, &dR(t, 0));
        }
        product<T>(r.m, D, r.pairs, fixed(dR), x, d_asked);
        product<T>(r.pairs, D, r.m, fixed(dR).turned(), asked, to.X.from(r.begin), true);
        product<T>(r.unknowns, dv, r.m, fixed(weighted).turned(), d_out,
                   to.e.from(r.begin * s.window));
        said_backward<T>(r.m, dv, D, d_out, n, fixed(a.Q.from(r.begin)), asked, a.W.from(i * dv), dn,
                         d_asked, to.W.from(i * dv), dq);
        if (s.momentum)
            said_backward<T>(r.m, dv, D, d_out, n.from(0, dv), fixed(a.Q_S.from(r.begin)), asked,
                             a.S.from(i * dv), dn.from(0, dv), d_asked, to.S.from(i * dv), dq);
    }
}

template <class T> static void answer_backward(Arguments a) {
    Sizes s(a);
    auto dy = a.tensor<const T>(), h = a.tensor<const T>(), W = a.tensor<const T>();
    auto S = a.tensor<const T>(), X = a.tensor<const T>(), e = a.tensor<const T>();
    auto now = a.tensor<const T>();
    auto Q = a.tensor<T>(), Q_S = a.tensor<T>(), R = a.tensor<T>();
    auto dh = a.tensor<T>(), dW = a.tensor<T>(), dS = a.tensor<T>(), dX = a.tensor<T>();
    auto de = a.tensor<T>(), d_now = a.tensor<T>();
    ALL_ROWS(a) {
        AnswerRow<T> row = {h.at(g), W.at(g), S.at(g), X.at(g), e.at(g), now.at(g), {}, Q.at(g),
                            Q_S.at(g), R.at(g)};
        answer_back<T>(s, row, dy.at(g), {dh.at(g), dW.at(g), dS.at(g), dX.at(g), de.at(g),
                                          d_now.at(g)});
    }
}
KERNEL(answer_backward)
