//! Errors of building a graph.

/// Why a trace is not a graph.
///
/// Every variant is a mistake in a model's builder or a configuration that contradicts itself, found before
/// any byte is read or planned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// The shapes of an op's operands do not fit together.
    #[error("op {op}: {what}")]
    Shape {
        /// Kind and name of the op.
        op: String,
        /// What does not fit, with the sizes.
        what: String,
    },
    /// A tensor is read before anything wrote it.
    #[error("op {op} reads {tensor} before anything wrote it")]
    ReadBeforeWrite {
        /// Kind and name of the op.
        op: String,
        /// Name of the tensor.
        tensor: String,
    },
    /// A size does not fit the arithmetic.
    #[error("{what} is too large")]
    TooLarge {
        /// What overflowed.
        what: String,
    },
    /// The trace is not well nested: an op outside of a phase or block.
    #[error("{what}")]
    Structure {
        /// What is out of place.
        what: String,
    },
}
