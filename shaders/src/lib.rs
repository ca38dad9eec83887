//! WGSL kernels of Thermocline and the table that names them.
