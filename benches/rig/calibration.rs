//! A fixed piece of work, about a tenth of a millisecond, that times are told as multiples of: so figures of a slow or busy hour can be compared.

use std::hint::black_box;

/// Steps that wait for each other, in the processor alone.
pub(crate) fn work() -> u64 {
    (0..black_box(50_000_u64)).fold(1, |sum, step| (sum ^ step).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7))
}
