// Every kernel of the memory, for float and double: one translation unit, compiled in a second or two.
#include "arguments.h"
#include "products.h"
#include "pairs.h"
#include "exact.h"
#include "coefficients.h"
#include "hidden.h"
#include "orthogonal.h"
#include "token.h"
