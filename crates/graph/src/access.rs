//! How an op uses an operand.

/// How an op uses an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// The op reads it.
    pub reads: bool,
    /// The op writes it.
    pub writes: bool,
}

pub(crate) const READ: Access = Access { reads: true, writes: false };
pub(crate) const WRITE: Access = Access { reads: false, writes: true };
pub(crate) const UPDATE: Access = Access { reads: true, writes: true };
