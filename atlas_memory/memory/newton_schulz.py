"""Newton-Schulz: the nearest semi-orthogonal matrix, by matrix products alone.   [Atlas Eq. 40]"""

import torch
from torch import Tensor

KELLER = (3.4445, -4.7750, 2.0315)


def newton_schulz(
    S: Tensor, steps: int, coefficients: tuple[float, float, float] = KELLER
) -> Tensor:
    """NS_k(S) for S [.., out, in], all leading axes at once.

        X = S / (||S||_F + 1e-7);  k times  X <- aX + (bA + cA^2) X,  A = X X^T on the short side

    Every iterate is a polynomial of the Gram matrix times S, X = Q(SS^T) S, so the loop runs on
    m x m matrices (m the short side) and S is multiplied once: exact, and cheaper when m << n.
    """
    if S.shape[-2] > S.shape[-1]:
        return newton_schulz(S.mT, steps, coefficients).mT
    X = S / (torch.linalg.vector_norm(S, dim=(-2, -1), keepdim=True) + 1e-7)
    if steps == 0:
        return X
    return _polynomial(X @ X.mT, steps, coefficients) @ X


def _polynomial(A: Tensor, steps: int, coefficients: tuple[float, float, float]) -> Tensor:
    """Q with NS_k(X) = Q X, from A = X X^T. Q and A commute, so A <- P A P follows X <- P X."""
    a, b, c = coefficients
    shape, m = A.shape, A.shape[-1]
    A = A.reshape(-1, m, m)
    scaled = a * torch.eye(m, dtype=A.dtype, device=A.device)
    Q = None
    for step in range(steps):
        P = torch.baddbmm(A, A, A, beta=b, alpha=c) + scaled
        Q = P if Q is None else torch.bmm(P, Q)
        if step + 1 < steps:
            A = torch.bmm(torch.bmm(P, A), P)
    assert Q is not None
    return Q.reshape(shape)
