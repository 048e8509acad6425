//! Architectures that kernels are built for.

/// A compiled source file.
#[derive(Clone, Copy, Debug)]
pub struct Cubin {
    /// Name of its source in `kernels/`, without the ending.
    pub name: &'static str,
    /// The image that the driver loads.
    pub image: &'static [u8],
}

/// The cubins of an architecture: those of every source, then those of sources that are for it alone.
///
/// The files are committed; `tools/kernels.py check` says whether they are what their sources give.
macro_rules! cubins {
    ($arch:literal, $($only:literal),*) => {
        &[
            cubins!(@one $arch, "attention"),
            cubins!(@one $arch, "conv"),
            cubins!(@one $arch, "gemm"),
            cubins!(@one $arch, "light_f8"),
            cubins!(@one $arch, "light_map"),
            cubins!(@one $arch, "light_group_norm"),
            cubins!(@one $arch, "light_norm"),
            cubins!(@one $arch, "light_rope"),
            cubins!(@one $arch, "light_small"),
            cubins!(@one $arch, "light_tiles"),
            cubins!(@one $arch, "runtime"),
            $(cubins!(@one $arch, $only),)*
        ]
    };
    (@one $arch:literal, $name:literal) => {
        Cubin {
            name: $name,
            image: include_bytes!(concat!("../cubin/", $arch, "/", $name, ".cubin")),
        }
    };
}

/// An architecture with kernels of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Arch {
    /// A100.
    Sm80,
    /// RTX 30, A10, A40.
    Sm86,
    /// RTX 40, L4, L40S.
    Sm89,
    /// H100, H200.
    Sm90a,
    /// B200.
    Sm100a,
    /// RTX 50.
    Sm120a,
}

impl Arch {
    /// The kernels that run on a card of a compute capability.
    pub fn of(major: u32, minor: u32) -> Option<Self> {
        match (major, minor) {
            (8, 0) => Some(Self::Sm80),
            (8, 6 | 7) => Some(Self::Sm86),
            (8, 9) => Some(Self::Sm89),
            (9, 0) => Some(Self::Sm90a),
            (10, 0) => Some(Self::Sm100a),
            (12, 0) => Some(Self::Sm120a),
            _ => None,
        }
    }

    /// The architecture of a [`name`](Self::name).
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Sm80, Self::Sm86, Self::Sm89, Self::Sm90a, Self::Sm100a, Self::Sm120a];
        all.into_iter().find(|arch| arch.name() == name)
    }

    /// Name as the compiler takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sm80 => "sm_80",
            Self::Sm86 => "sm_86",
            Self::Sm89 => "sm_89",
            Self::Sm90a => "sm_90a",
            Self::Sm100a => "sm_100a",
            Self::Sm120a => "sm_120a",
        }
    }

    /// Whether own kernels multiply 8 bits by 8 bits on its tensor cores.
    pub const fn has_narrow_products(self) -> bool {
        matches!(self, Self::Sm89 | Self::Sm90a | Self::Sm120a)
    }

    /// Every module of the architecture.
    pub fn cubins(self) -> &'static [Cubin] {
        match self {
            Self::Sm80 => cubins!("sm_80",),
            Self::Sm86 => cubins!("sm_86",),
            Self::Sm89 => cubins!("sm_89", "gemm_f8"),
            Self::Sm90a => cubins!("sm_90a", "gemm_f8", "hopper", "hopper_attention"),
            Self::Sm100a => cubins!("sm_100a",),
            Self::Sm120a => cubins!("sm_120a", "gemm_f8"),
        }
    }
}
