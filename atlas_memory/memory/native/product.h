// C = A B of matrices that fit into a processor's cache, and room for what a kernel makes by the way.
//
// B is laid into panels as wide as two vectors, turned on the way where it is stored turned; a tile
// of rows of C then stays in registers while k runs. A matrix product library is built for matrices
// ten times as long and gives half of this rate for a chunk's.
#pragma once
#include <stdlib.h>

#if defined(__AVX512F__)
#define BYTES 64
#define ROWS 14
#elif defined(__AVX__)
#define BYTES 32
#define ROWS 6
#else
#define BYTES 16
#define ROWS 6
#endif
#define INLINE static inline __attribute__((always_inline))

template <class T> struct Vectors;
template <> struct Vectors<float> {
    typedef float aligned __attribute__((vector_size(BYTES)));
    typedef float loose __attribute__((vector_size(BYTES), aligned(4)));
    typedef int index __attribute__((vector_size(BYTES)));
};
template <> struct Vectors<double> {
    typedef double aligned __attribute__((vector_size(BYTES)));
    typedef double loose __attribute__((vector_size(BYTES), aligned(8)));
    typedef long long index __attribute__((vector_size(BYTES)));
};
template <class T> using Vector = typename Vectors<T>::aligned;
template <class T> constexpr long LANES = BYTES / sizeof(T);
template <class T> constexpr long WIDE = 2 * LANES<T>;  // columns of a panel

template <class T> INLINE Vector<T> load(const T *p) {
    return *(const typename Vectors<T>::loose *)p;
}
template <class T> INLINE void store(T *p, Vector<T> x) { *(typename Vectors<T>::loose *)p = x; }

// A matrix anywhere in memory: element (i, j) is at p[i * row + j * column].
template <class T> struct Matrix {
    T *p;
    long row, column;
    T &operator()(long i, long j) const { return p[i * row + j * column]; }
    Matrix turned() const { return {p, column, row}; }
    Matrix from(long i, long j = 0) const { return {p + i * row + j * column, row, column}; }
};

// Memory of a thread that stays from call to call: the n-th piece in use is the n-th block.
struct Block {
    void *p = nullptr;
    size_t bytes = 0;
    ~Block() { free(p); }
};
static thread_local Block blocks[96];
static thread_local int taken = 0;

// Pieces until the end of a scope; a room inside another goes on behind it.
class Room {
    int before = taken;

  public:
    ~Room() { taken = before; }
    template <class T> T *numbers(long n) {
        Block &b = blocks[taken++];
        size_t bytes = ((n + WIDE<T>) * sizeof(T) + 63) / 64 * 64;
        if (b.bytes < bytes) {
            free(b.p);
            b.p = aligned_alloc(64, bytes);
            b.bytes = bytes;
        }
        return (T *)b.p;
    }
    template <class T> Matrix<T> matrix(long rows, long columns) {
        return {numbers<T>(rows * columns), columns, 1};
    }
};

// M rows of C as wide as V vectors.
template <class T, int M, int V>
INLINE void tile(long k, Matrix<const T> a, const T *panel, T *c, long row, bool add) {
    constexpr long L = LANES<T>;
    Vector<T> s[M][V] = {};
    for (long p = 0; p < k; p++) {
        Vector<T> b[V];
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) b[v] = load<T>(panel + (p * V + v) * L);
#pragma GCC unroll 16
        for (int i = 0; i < M; i++) {
            T x = a(i, p);
#pragma GCC unroll 2
            for (int v = 0; v < V; v++) s[i][v] += x * b[v];
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < M; i++)
#pragma GCC unroll 2
        for (int v = 0; v < V; v++) {
            T *o = c + i * row + v * L;
            store<T>(o, add ? load<T>(o) + s[i][v] : s[i][v]);
        }
}

// `count` tiles of m rows, one below the other.
template <class T, int V>
static void tiles(long count, long m, long k, Matrix<const T> a, const T *panel, T *c, long row,
                  bool add) {
    switch (m) {
#define CASE(M)                                                                                   \
    case M:                                                                                       \
        for (; count; count--, a = a.from(M), c += M * row)                                       \
            tile<T, M, V>(k, a, panel, c, row, add);                                              \
        return;
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#if ROWS > 6
        CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
#endif
#undef CASE
    }
}

// Rows of a square of vectors become its columns: each round deals the two halves out like cards.
template <class T> INLINE void turn(Vector<T> *r) {
    constexpr long L = LANES<T>;
    typename Vectors<T>::index low, high;
    for (long i = 0; i < L; i++) {
        low[i] = i / 2 + (i & 1) * L;
        high[i] = low[i] + L / 2;
    }
    for (long step = 1; step < L; step *= 2) {
        Vector<T> dealt[L];
#pragma GCC unroll 16
        for (long i = 0; i < L / 2; i++) {
            dealt[2 * i] = __builtin_shuffle(r[i], r[i + L / 2], low);
            dealt[2 * i + 1] = __builtin_shuffle(r[i], r[i + L / 2], high);
        }
#pragma GCC unroll 16
        for (long i = 0; i < L; i++) r[i] = dealt[i];
    }
}

// n <= V vectors of columns of b; what stands behind the n-th is of no meaning, and its products are
// dropped. A vector that is longer than what is left of a row goes on into the next one.
template <class T, int V> static void lay(long k, long n, Matrix<const T> b, T *panel) {
    constexpr long L = LANES<T>, W = V * L;
    long p = 0;
    if (b.column == 1 && W - n <= b.row) {
        for (long safe = n == W ? k : k - 1; p < safe; p++)
            for (long j = 0; j < W; j += L) store<T>(panel + p * W + j, load<T>(&b(p, j)));
    } else if (b.row == 1) {
        for (; p + L <= k; p += L)
            for (long j = 0; j < W; j += L) {
                Vector<T> r[L];
#pragma GCC unroll 16
                for (long i = 0; i < L; i++) r[i] = load<T>(&b(p, j + i < n ? j + i : n - 1));
                turn<T>(r);
#pragma GCC unroll 16
                for (long i = 0; i < L; i++) store<T>(panel + (p + i) * W + j, r[i]);
            }
    }
    for (; p < k; p++)
        for (long j = 0; j < n; j++) panel[p * W + j] = b(p, j);
}

constexpr long DEPTH = 512;  // rows of a panel at once

static void *room_of_panel() {
    static thread_local Block kept;
    if (!kept.p) kept.p = aligned_alloc(64, DEPTH * 2 * BYTES);
    return kept.p;
}

// The columns of C that one panel makes.
template <class T, int V>
static void columns(long m, long wide, long k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
                    bool add) {
    constexpr long W = V * LANES<T>;
    const T *panel = b.p;
    if (wide < W || b.column != 1 || b.row != W) {  // else it lies there as a panel
        T *laid = (T *)room_of_panel();
        lay<T, V>(k, wide, b, laid);
        panel = laid;
    }
    long count = m > ROWS ? (m + ROWS - 1) / ROWS : 1;
    if (m % count && m % (count + 1) == 0) count++;  // all alike
    long rows = m / count, longer = m % count, last = longer * (rows + 1);
    auto some = [&](long i, long count, long rows) {
        if (wide == W) return tiles<T, V>(count, rows, k, a.from(i), panel, &c(i, 0), c.row, add);
        alignas(64) T t[ROWS * W];
        for (; count; count--, i += rows) {
            tiles<T, V>(1, rows, k, a.from(i), panel, t, W, false);
            for (long r = 0; r < rows; r++)
                for (long x = 0; x < wide; x++) {
                    T &o = c.p[(i + r) * c.row + x];
                    o = t[r * W + x] + (add ? o : T(0));
                }
        }
    };
    if (longer) some(0, longer, rows + 1);
    some(last, count - longer, rows);
}

// C [m, n] = A [m, k] B [k, n], or C + A B. Rows of C lie side by side.
template <class T>
static void product_exact(long m, long n, long k, Matrix<const T> a, Matrix<const T> b, Matrix<T> c,
                    bool add = false) {
    if (k == 0 && !add)
        for (long i = 0; i < m; i++)
            for (long j = 0; j < n; j++) c(i, j) = 0;
    for (long p = 0; p < k; p += DEPTH) {
        long deep = k - p < DEPTH ? k - p : DEPTH;
        for (long j = 0; j < n; j += WIDE<T>) {
            long wide = n - j < WIDE<T> ? n - j : WIDE<T>;
            auto way = wide > LANES<T> ? columns<T, 2> : columns<T, 1>;
            way(m, wide, deep, a.from(0, p), b.from(p, j), c.from(0, j), add || p);
        }
    }
}

template <class T> static Matrix<const T> fixed(Matrix<T> x) { return {x.p, x.row, x.column}; }
