//! Simulated device.
