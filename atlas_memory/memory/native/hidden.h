// The hidden layer of an MLP memory, h = s / |s|, s = gelu(z), and what an error teaches it.
// architectures.py, learner.py
#pragma once
#include <cmath>

// ---- the normal distribution ---------------------------------------------------------------------

template <class T> struct Normal {
    Vector<T> cdf, pdf;
};

// e^x for x <= 0
INLINE Vector<float> falling(Vector<float> x) {
    x = x < -87.0f ? x * 0.0f - 87.0f : x;
    Vector<float> shifted = x * 1.442695041f + 12582912.0f;  // rounds: 1.5 * 2^23
    Vector<float> n = shifted - 12582912.0f;
    Vector<float> r = x - n * 0.693145752f - n * 1.42860677e-6f;
    Vector<float> p = 1.0f / 720 * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    auto power = (__builtin_convertvector(n, typename Vectors<float>::index) + 127) << 23;
    return p * (Vector<float>)power;
}

// The tail as Abramowitz and Stegun 7.1.26, to 1.5e-7.
INLINE Normal<float> normal(Vector<float> z) {
    Vector<float> size = z > 0 ? z : -z, e = falling(-0.5f * z * z);
    Vector<float> t = 1.0f / (1.0f + 0.3275911f * 0.7071067812f * size);
    Vector<float> p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    Vector<float> tail = 0.5f * p * t * e;
    return {z > 0 ? 1.0f - tail : tail, 0.3989422804f * e};
}

INLINE Normal<double> normal(Vector<double> z) {
    Normal<double> o;
    for (long i = 0; i < LANES<double>; i++) {
        o.cdf[i] = 0.5 * std::erfc(-z[i] * M_SQRT1_2);
        o.pdf[i] = std::exp(-0.5 * z[i] * z[i]) * 0.5 * M_SQRT1_2 * M_2_SQRTPI;
    }
    return o;
}

// ---- walking over a row --------------------------------------------------------------------------

template <class T> INLINE Vector<T> load(const T *p, long n) {
    if (n >= LANES<T>) return load<T>(p);
    Vector<T> x = {};
    for (long i = 0; i < n; i++) x[i] = p[i];
    return x;
}
template <class T> INLINE void store(T *p, Vector<T> x, long n) {
    if (n >= LANES<T>) return store<T>(p, x);
    for (long i = 0; i < n; i++) p[i] = x[i];
}
template <class T> INLINE T sum(Vector<T> x) {
    T s = 0;
    for (long i = 0; i < LANES<T>; i++) s += x[i];
    return s;
}
#define ALONG(i, n) for (long i = 0; i < (n); i += LANES<T>)

// ---- kernels -------------------------------------------------------------------------------------

// h = s / length, length = sqrt(|s|^2 + small), which is returned
template <class T> static T unit(long n, const T *z, T *h) {
    Vector<T> squares = {};
    ALONG(i, n) {
        Vector<T> x = load<T>(z + i, n - i), s = x * normal(x).cdf;
        squares += s * s;
        store<T>(h + i, s, n - i);
    }
    T length = std::sqrt(sum<T>(squares) + T(SMALL));
    scaled<T>(n, 1 / length, h, h);
    return length;
}

template <class T> static void hidden_forward(Arguments a) {
    long rows = a.size(), n = a.size();
    auto z = a.tensor<const T>(), h = a.tensor<T>(), length = a.tensor<T>();
    ALL_ROWS(a) for (long t = 0; t < rows; t++) {
        length.at(g)(t, 0) = unit<T>(n, &z.at(g)(t, 0), &h.at(g)(t, 0));
    }
}
KERNEL(hidden_forward)

// dz of `unit`, or onto it.
template <class T>
static void unit_back(long n, const T *z, const T *h, T length, const T *dh, T d_length, T *dz,
                      bool add = false) {
    T along = dot<T>(n, h, dh) - d_length * length, share = 1 / length;
    ALONG(i, n) {
        long left = n - i;
        Vector<T> x = load<T>(z + i, left);
        Vector<T> ds = (load<T>(dh + i, left) - along * load<T>(h + i, left)) * share;
        auto p = normal(x);
        ds *= p.cdf + x * p.pdf;
        store<T>(dz + i, add ? load<T>(dz + i, left) + ds : ds, left);
    }
}

template <class T> static void hidden_backward(Arguments a) {
    long rows = a.size(), n = a.size();
    auto dh = a.tensor<const T>(), d_length = a.tensor<const T>(), z = a.tensor<const T>();
    auto h = a.tensor<const T>(), length = a.tensor<const T>();
    auto dz = a.tensor<T>();
    ALL_ROWS(a) for (long t = 0; t < rows; t++) {
        T more = d_length ? d_length.at(g)(t, 0) : T(0);
        unit_back<T>(n, &z.at(g)(t, 0), &h.at(g)(t, 0), length.at(g)(t, 0), &dh.at(g)(t, 0), more,
                     &dz.at(g)(t, 0));
    }
}
KERNEL(hidden_backward)

// d = u / (1 + |u|), u = gelu'(z) (dh - h <h, dh>) / length; |u| is returned
template <class T> static T taught(long n, const T *dh, const T *h, T length, const T *z, T *d) {
    T share = 1 / length, along = dot<T>(n, h, dh);
    Vector<T> squares = {};
    ALONG(i, n) {
        long left = n - i;
        Vector<T> x = load<T>(z + i, left);
        Vector<T> w = (load<T>(dh + i, left) - along * load<T>(h + i, left)) * share;
        auto p = normal(x);
        w *= p.cdf + x * p.pdf;
        squares += w * w;
        store<T>(d + i, w, left);
    }
    T found = std::sqrt(sum<T>(squares));
    scaled<T>(n, 1 / (1 + found), d, d);
    return found;
}

template <class T> static void taught_forward(Arguments a) {
    long rows = a.size(), n = a.size();
    auto dh = a.tensor<const T>(), h = a.tensor<const T>(), length = a.tensor<const T>();
    auto z = a.tensor<const T>(), d = a.tensor<T>(), norm = a.tensor<T>();
    ALL_ROWS(a) for (long t = 0; t < rows; t++) {
        norm.at(g)(t, 0) = taught<T>(n, &dh.at(g)(t, 0), &h.at(g)(t, 0), length.at(g)(t, 0),
                                     &z.at(g)(t, 0), &d.at(g)(t, 0));
    }
}
KERNEL(taught_forward)

// With w = dh / length behind the projection, s = gelu'(z) and c = gelu''(z):
// du = g / (1 + |u|) - d <d, g> / |u|, and from there back through s and the projection. The
// gradient of the length is returned; back: room for a row of vectors; add: dh_k onto what is there.
template <class T> struct TaughtRow {
    const T *dd, *d, *dh, *h, *z;
    T norm, length;
};

template <class T>
static T taught_back(long n, const TaughtRow<T> &a, T *d_dh, T *d_h, T *dz, T *back, bool add) {
    T share = 1 / a.length, along = dot<T>(n, a.h, a.dh), shorter = 1 / (1 + a.norm);
    T bound = dot<T>(n, a.d, a.dd) / (a.norm > T(TINY) ? a.norm : T(TINY));
    Vector<T> over = {}, through = {};
    ALONG(i, n) {
        long left = n - i;
        Vector<T> x = load<T>(a.z + i, left), e = load<T>(a.h + i, left);
        Vector<T> w = (load<T>(a.dh + i, left) - along * e) * share;
        auto p = normal(x);
        Vector<T> du = load<T>(a.dd + i, left) * shorter - bound * load<T>(a.d + i, left);
        Vector<T> dw = du * (p.cdf + x * p.pdf) * share;
        store<T>(dz + i, du * w * p.pdf * (2 - x * x), left);
        store<T>(back + i, dw, LANES<T>);
        over += e * dw;
        through += w * dw;
    }
    T inside = sum<T>(over);
    ALONG(i, n) {
        long left = n - i;
        Vector<T> dw = load<T>(back + i), e = load<T>(a.h + i, left);
        Vector<T> to_h = -along * dw - inside * load<T>(a.dh + i, left);
        store<T>(d_dh + i, dw - inside * e, left);
        store<T>(d_h + i, add ? load<T>(d_h + i, left) + to_h : to_h, left);
    }
    return -sum<T>(through);
}

template <class T> static void taught_backward(Arguments a) {
    long rows = a.size(), n = a.size();
    auto dd = a.tensor<const T>(), d = a.tensor<const T>(), norm = a.tensor<const T>();
    auto dh = a.tensor<const T>(), h = a.tensor<const T>(), length = a.tensor<const T>();
    auto z = a.tensor<const T>();
    auto d_dh = a.tensor<T>(), d_h = a.tensor<T>(), d_length = a.tensor<T>();
    auto dz = a.tensor<T>();
    ALL_ROWS(a) {
        Room room;
        T *back = room.numbers<T>(n);
        for (long t = 0; t < rows; t++) {
            TaughtRow<T> row = {&dd.at(g)(t, 0), &d.at(g)(t, 0), &dh.at(g)(t, 0), &h.at(g)(t, 0),
                                &z.at(g)(t, 0), norm.at(g)(t, 0), length.at(g)(t, 0)};
            d_length.at(g)(t, 0) = taught_back<T>(n, row, &d_dh.at(g)(t, 0), &d_h.at(g)(t, 0),
                                                  &dz.at(g)(t, 0), back, false);
        }
    }
}
KERNEL(taught_backward)
