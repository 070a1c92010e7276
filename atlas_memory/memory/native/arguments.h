// What Python hands over: threads, rows, whether factors of products are rounded, sizes, and four
// numbers for every tensor [g, rows, columns].
#pragma once
#include <string.h>

#include "rounded.h"

template <class T> struct Tensor {
    T *p;
    long g, row, column;
    Matrix<T> at(long i) const { return {p + i * g, row, column}; }
    explicit operator bool() const { return p; }
};

struct Arguments {
    const long *next;
    long threads, rows, rounded;
    explicit Arguments(const long *given)
        : next(given + 3), threads(given[0]), rows(given[1]), rounded(given[2]) {}
    long size() { return *next++; }
    double number() {
        double x;
        memcpy(&x, next++, sizeof x);
        return x;
    }
    template <class T> Tensor<T> tensor() {
        const long *a = next;
        next += 4;
        return {(T *)a[0], a[1], a[2], a[3]};
    }
};

// A library is made for one type of number.
#define KERNEL(name)                                                                              \
    extern "C" void name(const long *given) { name<NUMBER>(Arguments(given)); }

#define ALL_ROWS(a) _Pragma("omp parallel for schedule(dynamic) num_threads((a).threads)")          \
    for (long g = 0; g < (a).rows; g++) if (Rounding rounding((a).rounded); true)

// ---- row by row ----------------------------------------------------------------------------------

template <class T> INLINE T dot(long n, const T *a, const T *b) {
    Vector<T> s = {};
    long i = 0;
    for (; i + LANES<T> <= n; i += LANES<T>) s += load<T>(a + i) * load<T>(b + i);
    T sum = 0;
    for (long j = 0; j < LANES<T>; j++) sum += s[j];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

// o = a * x, or o + a * x.
template <class T> INLINE void scaled(long n, T a, const T *x, T *o, bool add = false) {
    long i = 0;
    for (; i + LANES<T> <= n; i += LANES<T>)
        store<T>(o + i, add ? load<T>(o + i) + a * load<T>(x + i) : a * load<T>(x + i));
    for (; i < n; i++) o[i] = add ? o[i] + a * x[i] : a * x[i];
}

// o = p * x + q * y
template <class T> INLINE void blended(long n, T p, const T *x, T q, const T *y, T *o) {
    long i = 0;
    for (; i + LANES<T> <= n; i += LANES<T>)
        store<T>(o + i, p * load<T>(x + i) + q * load<T>(y + i));
    for (; i < n; i++) o[i] = p * x[i] + q * y[i];
}

// o = a - b
template <class T> INLINE void minus(long n, const T *a, const T *b, T *o) {
    for (long i = 0; i < n; i++) o[i] = a[i] - b[i];
}

// The rows of a matrix times one number.
template <class T> static void weigh(long rows, long n, T a, Matrix<const T> x, Matrix<T> o) {
    for (long i = 0; i < rows; i++) scaled<T>(n, a, &x(i, 0), &o(i, 0));
}

// o = a * b, or o + a * b, element by element.
template <class T> INLINE void times(long n, const T *a, const T *b, T *o, bool add = false) {
    long i = 0;
    for (; i + LANES<T> <= n; i += LANES<T>)
        store<T>(o + i, add ? load<T>(o + i) + load<T>(a + i) * load<T>(b + i)
                            : load<T>(a + i) * load<T>(b + i));
    for (; i < n; i++) o[i] = add ? o[i] + a[i] * b[i] : a[i] * b[i];
}

constexpr double SMALL = 1e-4;     // architectures.py
constexpr double SMALLEST = 1e-7;  // optimizers.py
constexpr double TINY = 1e-30;     // architectures.py
