"""Symbols and shapes. One letter, one meaning, everywhere in `memory/`.

    paper     code      meaning                                      shape
    k, v, q   k, v, q   key, value, query                            b h t d
    y         y         what the memory answers                      b h t dv
    phi       features  feature map of keys and queries              dk -> D
    M, W_l    W         the memory's matrices, l = 1 .. L            b h out in
    S_t       S         momentum of the memory                       as W
    M_t'      W'        the memory at the end of the previous chunk  as W
    l         bias      attentional bias, the inner loss             scalar
    u_i       d (x) x   inner gradient of pair i, always rank one    out, in
    alpha     alpha     retention: what is kept of the old memory    b h t
    eta       eta       inner step size                              b h t
    theta     theta     inner momentum                               b h t
    gamma     gamma     gates of the window, token t-j in step t     b h t c
    c         window    pairs that a step looks at
    b         chunk     tokens that share one gradient point W'

Inside the engine batch and heads are one axis g = b * h, a chunk has m tokens and n = m + c - 1
pairs: its own and the c - 1 before it.
"""
