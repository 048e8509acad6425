//! Runs a loop with the widest vector instructions of the processor.

/// Calls `body` compiled for the widest vectors that the processor has, and tells it which.
///
/// Everything that `body` calls must be inlined into it. The bits of its result do not depend on the width: the
/// compiler neither fuses nor reorders floating-point operations.
#[inline(always)]
pub(crate) fn vectorised<R>(body: impl FnOnce(Isa) -> R) -> R {
    let arch = pulp::Arch::new();
    let isa = Isa::of(arch);
    arch.dispatch(
        #[inline(always)]
        || body(isa),
    )
}

/// Proof that the processor has some instructions.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    /// AVX-512 F, BW, CD, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    V4(pulp::x86::V4),
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    V3(pulp::x86::V3),
    /// What the target always has.
    Plain,
}

impl Isa {
    fn of(arch: pulp::Arch) -> Self {
        match arch {
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V4(token) => Self::V4(token),
            #[cfg(target_arch = "x86_64")]
            pulp::Arch::V3(token) => Self::V3(token),
            _ => Self::Plain,
        }
    }
}
