//! CPU device.
