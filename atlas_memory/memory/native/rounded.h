// Products of factors rounded to bfloat16, at up to twice the rate of product.h.
//
// The processor's instruction adds two products at once: both factors are laid as pairs along k, 32
// bits that hold two numbers, first all of A, then B panel by panel. Where there is no such
// instruction rounded copies are multiplied.
#pragma once
#include <string.h>

#include "product.h"

#if defined(__AVX512BF16__)
#include <immintrin.h>

constexpr long LINE = DEPTH / 2 + 16;  // pairs from row to row: an odd number of cache lines

INLINE __mmask16 first(long n) { return n >= 16 ? 0xffff : n > 0 ? (1 << n) - 1 : 0; }

INLINE __m512i round_both(__m512 low, __m512 high) {
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

// 16 pairs of what lies side by side; past the `left` numbers there are, zeros. Where only zeros
// are wanted the place before is read again: a masked load past the end of memory is very slow.
struct Neighbours {
    __mmask16 low, high;
    long next;
    explicit Neighbours(long left)
        : low(first(left)), high(first(left - 16)), next(left > 16 ? 16 : 0) {}
    __m512i operator()(const float *x) const {
        return round_both(_mm512_maskz_loadu_ps(low, x), _mm512_maskz_loadu_ps(high, x + next));
    }
};

// n rows of a as rows of pairs.
static void lay_along(long n, long k, Matrix<const float> a, int *pairs) {
    for (long p = 0; p < k; p += 32) {
        Neighbours of(k - p);
        for (long i = 0; i < n; i++)
            _mm512_store_si512(pairs + i * LINE + p / 2, of(&a(i, p)));
    }
}

// As lay_pairs, of columns that lie in one piece: 16 pairs of 16 columns are turned at once, within
// quarters of a vector and then quarter by quarter: faster than turn, if rows are kept in slots.
static void lay_turned(long k, long n, Matrix<const float> b, int *pairs, long row) {
    for (long j = 0; j < n; j += 16)
        for (long p = 0; p < k; p += 32) {
            Neighbours of(k - p);
            __m512i r[16], dealt[16];
            auto slot = [](long i) { return (i & 3) << 2 | (i >> 1 & 2) | i >> 3; };
#pragma GCC unroll 16
            for (long i = 0; i < 16; i++) r[slot(i)] = of(&b(p, j + i < n ? j + i : j));
#pragma GCC unroll 4
            for (int round = 0; round < 4; round++) {
#pragma GCC unroll 8
                for (long i = 0; i < 8; i++) {
                    __m512i x = r[i], y = r[i + 8];
                    dealt[2 * i] = round < 2 ? _mm512_unpacklo_epi32(x, y)
                                             : _mm512_shuffle_i32x4(x, y, 0x88);
                    dealt[2 * i + 1] = round < 2 ? _mm512_unpackhi_epi32(x, y)
                                                 : _mm512_shuffle_i32x4(x, y, 0xdd);
                }
#pragma GCC unroll 16
                for (long i = 0; i < 16; i++) r[i] = dealt[i];
            }
#pragma GCC unroll 16
            for (long i = 0; i < 16; i++)
                _mm512_store_si512(pairs + (p / 2 + i) * row + j, r[slot(i)]);
        }
}

// n columns of b, filled up to whole vectors: 32 bits at [p, j] hold b(2p, j) and b(2p + 1, j).
static void lay_pairs(long k, long n, Matrix<const float> b, int *pairs, long row) {
    if (b.row == 1 && b.column != 1 && k > 2) return lay_turned(k, n, b, pairs, row);
    alignas(64) short dealt[32];
    alignas(64) int along[16];
    for (int i = 0; i < 32; i++) dealt[i] = i / 2 + (i & 1) * 16;
    for (int i = 0; i < 16; i++) along[i] = i * b.column;
    __m512i deal = _mm512_load_si512(dealt), steps = _mm512_load_si512(along);
    __m512 zero = _mm512_setzero_ps();
    auto lay = [&](long p, long j, bool last) __attribute__((always_inline)) {
        __mmask16 some = first(n - j);
        auto line = [&](const float *x) {
            return b.column == 1 ? _mm512_maskz_loadu_ps(some, x)
                                 : _mm512_mask_i32gather_ps(zero, some, steps, x, 4);
        };
        __m512i both = round_both(line(&b(p, j)), last ? zero : line(&b(p + 1, j)));
        _mm512_store_si512(pairs + p / 2 * row + j, _mm512_permutexvar_epi16(deal, both));
    };
    long p = 0;
    if (n > 32)  // lines of memory in their order
        for (; p + 1 < k; p += 2)
            for (long j = 0; j < n; j += 16) lay(p, j, false);
    else
        for (long j = 0; j < n; j += 16)
#pragma GCC unroll 4
            for (p = 0; p + 1 < k; p += 2) lay(p, j, false);
    if (p < k)
        for (long j = 0; j < n; j += 16) lay(p, j, true);
}

// M rows of C, `wide` columns in V vectors; a's rows lie ROW pairs apart, its columns `step`.
template <int M, int V, long ROW>
INLINE void tile_pairs(long k, const int *a, long step, const int *panel, Matrix<float> c,
                       long wide, bool add) {
    __m512 s[M][V] = {};
    for (long p = 0; p < k; p += 2, a += step, panel += V * 16) {
        __m512bh b[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) b[v] = (__m512bh)_mm512_load_si512(panel + v * 16);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32(a[i * ROW]);
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) s[i][v] = _mm512_dpbf16_ps(s[i][v], x, b[v]);
        }
    }
    __mmask16 last = first(wide - (V - 1) * 16);
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            float *o = &c(i, v * 16);
            __mmask16 some = v + 1 < V ? 0xffff : last;
            if (add) s[i][v] += _mm512_maskz_loadu_ps(some, o);
            _mm512_mask_storeu_ps(o, some, s[i][v]);
        }
}

template <int V, long ROW>
static void columns_of_pairs(long m, long wide, long k, const int *a, long step,
                             Matrix<const float> b, Matrix<float> c, bool add, int *panel) {
    lay_pairs(k, wide, b, panel, V * 16);
    for (long i = 0, left = (m + ROWS - 1) / ROWS; left; left--) {
        long rows = (m - i + left - 1) / left;
        switch (rows) {
#define CASE(M)                                                                                   \
    case M: tile_pairs<M, V, ROW>(k, a + i * ROW, step, panel, c.from(i), wide, add); break;
            CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7)
            CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#undef CASE
        }
        i += rows;
    }
}

// As product, of factors rounded to bfloat16; sums stay in float32.
static void product_rounded(long m, long n, long k, Matrix<const float> a, Matrix<const float> b,
                            Matrix<float> c, bool add = false) {
    static thread_local Block kept;
    bool along = a.column == 1;
    long high = ((m + 15) / 16 | 1) * 16;  // pairs from step to step where rows are neighbours
    size_t bytes = (DEPTH / 2 * (32 + high) + m * LINE) * sizeof(int);
    if (kept.bytes < bytes) {
        free(kept.p);
        kept.p = aligned_alloc(64, bytes);
        kept.bytes = bytes;
    }
    int *panel = (int *)kept.p, *left = panel + DEPTH / 2 * 32;
    if (k == 0 && !add)
        for (long i = 0; i < m; i++)
            for (long j = 0; j < n; j++) c(i, j) = 0;
    for (long p = 0; p < k; p += DEPTH) {
        long deep = k - p < DEPTH ? k - p : DEPTH;
        if (along)
            lay_along(m, deep, a.from(0, p), left);
        else
            lay_pairs(deep, m, a.from(0, p).turned(), left, high);
        for (long j = 0; j < n; j += 32) {
            long wide = n - j < 32 ? n - j : 32;
            auto way = along ? (wide > 16 ? columns_of_pairs<2, LINE> : columns_of_pairs<1, LINE>)
                             : (wide > 16 ? columns_of_pairs<2, 1> : columns_of_pairs<1, 1>);
            way(m, wide, deep, left, along ? 1 : high, b.from(p, j), c.from(0, j), add || p, panel);
        }
    }
}

#else

// A copy in which what lies side by side stays so.
static Matrix<const float> rounded(long m, long n, Matrix<const float> x, Block &kept) {
    if (x.row == 1 && x.column != 1) return rounded(n, m, x.turned(), kept).turned();
    size_t bytes = (m * n * sizeof(float) + 63) / 64 * 64;
    if (kept.bytes < bytes) {
        free(kept.p);
        kept.p = aligned_alloc(64, bytes);
        kept.bytes = bytes;
    }
    float *o = (float *)kept.p;
    for (long i = 0; i < m; i++)
        for (long j = 0; j < n; j++) {
            float y = x(i, j);
            unsigned u;
            memcpy(&u, &y, 4);
            u = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000;
            memcpy(o + i * n + j, y == y ? (void *)&u : (void *)&y, 4);
        }
    return {o, n, 1};
}

// As product, of factors rounded to bfloat16; sums stay in float32.
static void product_rounded(long m, long n, long k, Matrix<const float> a, Matrix<const float> b,
                            Matrix<float> c, bool add = false) {
    static thread_local Block left, right;
    product_exact<float>(m, n, k, rounded(m, k, a, left), rounded(k, n, b, right), c, add);
}
#endif

// Whether this thread's products are of rounded factors, while the scope lasts.
static thread_local bool rounds = false;

struct Rounding {
    bool before;
    explicit Rounding(bool on) : before(rounds) { rounds = on; }
    ~Rounding() { rounds = before; }
};

// C = A B, or C + A B, in the precision that was asked for.
template <class T>
static void product(long m, long n, long k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
                    bool add = false) {
    product_exact<T>(m, n, k, a, b, c, add);
}
template <>
void product<float>(long m, long n, long k, Matrix<const float> a, Matrix<const float> b,
                    Matrix<float> c, bool add) {
    if (rounds) return product_rounded(m, n, k, a, b, c, add);
    product_exact<float>(m, n, k, a, b, c, add);
}
