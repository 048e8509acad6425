//! The closed vocabularies of a record, as text in the store and in files.

/// An enum whose variants are words.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The word.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }

            /// From the word.
            pub fn of(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.word() == word)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl rusqlite::ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
                Ok(self.word().into())
            }
        }

        impl rusqlite::types::FromSql for $name {
            fn column_result(
                value: rusqlite::types::ValueRef<'_>,
            ) -> rusqlite::types::FromSqlResult<Self> {
                let word = value.as_str()?;
                Self::of(word).ok_or_else(|| {
                    rusqlite::types::FromSqlError::Other(format!("{word:?} is no {}", stringify!($name)).into())
                })
            }
        }
    };
}
pub(crate) use words;

words! {
    /// How a run ended.
    Status {
        /// To the end of its last step. Says nothing on what came of it.
        Done = "done",
        /// Before it began: no plan fits, or the request makes no sense.
        Refused = "refused",
        /// On the way.
        Failed = "failed",
        /// Because somebody asked for it.
        Cancelled = "cancelled",
    }
}

words! {
    /// What ran short.
    Resource {
        /// Device memory.
        Vram = "vram",
        /// Host memory.
        Ram = "ram",
        /// Page-locked host memory.
        Pinned = "pinned",
        /// Space for files.
        Disk = "disk",
    }
}

words! {
    /// What a check found in a picture or in a record of other software.
    FindingCode {
        /// The decoder gave NaN or infinity.
        NonFinite = "non_finite",
        /// Every pixel is black.
        AllBlack = "all_black",
        /// Every pixel is white.
        AllWhite = "all_white",
        /// Hardly any pixel differs from the others.
        NearConstant = "near_constant",
        /// A repeat of the same conditions gave other bits.
        BitsDiffer = "bits_differ",
        /// Doctor saw that the run's placement was not in effect.
        PlacementNotInEffect = "placement_not_in_effect",
        /// Sequential offload of a pipeline that is wholly on the card.
        MovedToCuda = "moved_to_cuda",
        /// Two offload modes at once.
        TwoOffloadModes = "two_offload_modes",
        /// A device map beside an offload call.
        DeviceMapBesideOffload = "device_map_beside_offload",
        /// A component attached after the offload call.
        AttachedAfterOffload = "attached_after_offload",
        /// A quantization given as a dtype.
        QuantizationAsDtype = "quantization_as_dtype",
        /// A dtype given as a quantization.
        DtypeAsQuantization = "dtype_as_quantization",
        /// `empty_cache` given as an offload.
        EmptyCacheAsOffload = "empty_cache_as_offload",
        /// A field was not recorded.
        FieldMissing = "field_missing",
    }
}

impl FindingCode {
    /// Whether the picture fails by it, whoever looks.
    pub fn fails_quality(self) -> bool {
        matches!(self, Self::NonFinite | Self::AllBlack | Self::AllWhite | Self::NearConstant)
    }
}

words! {
    /// Part of a run in which something happened.
    Stage {
        /// Opening files, taking memory.
        Load = "load",
        /// Text encoders.
        Encode = "encode",
        /// What is computed once for all steps.
        Hoist = "hoist",
        /// The step loop.
        Denoise = "denoise",
        /// The decoder.
        Decode = "decode",
        /// Writing the picture.
        Write = "write",
    }
}
