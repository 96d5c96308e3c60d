//! What is checked of a multiply before it can run: addresses, shapes, the instruction set.

use super::{Activations, Epilogue, Gemm, GemmArgs, SwiGluOut};
use crate::cpu::isa::Isa;
use crate::cpu::quant::{self, QBlock};
use crate::cpu::tile_format::TileFormat;
use core::fmt;

/// Why a multiply cannot be captured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GemmError {
    /// Quantised weights need quantised activations, float weights f32 ones.
    ActivationKind { format: TileFormat },
    /// Pointers into weights, or to quantised blocks, are aligned to this many bytes.
    Alignment { what: &'static str, needed: usize },
    /// Rows are closer together than a row is long.
    Stride { what: &'static str, needed_bytes: usize, found_bytes: usize },
    /// Quantised output needs whole blocks.
    PartialBlock { n: usize },
    /// SwiGLU takes no bias.
    SwiGluBias,
    /// This CPU lacks the instruction set.
    Isa { isa: Isa },
}

impl fmt::Display for GemmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            GemmError::ActivationKind { format } => {
                let needed = if format.quant().is_some() { "quantised" } else { "f32" };
                write!(f, "{format:?} weights are multiplied with {needed} activations")
            }
            GemmError::Alignment { what, needed } => {
                write!(f, "{what} must be aligned to {needed} bytes")
            }
            GemmError::Stride { what, needed_bytes, found_bytes } => {
                write!(f, "rows of {what} are {found_bytes} bytes apart and {needed_bytes} long")
            }
            GemmError::PartialBlock { n } => {
                write!(f, "{n} outputs are not whole blocks of {}", quant::BLOCK)
            }
            GemmError::SwiGluBias => write!(f, "SwiGLU takes no bias"),
            GemmError::Isa { isa } => write!(f, "this CPU cannot run the {isa} kernels"),
        }
    }
}

impl core::error::Error for GemmError {}

impl GemmArgs {
    /// Checks what can be checked of addresses and shapes.
    pub fn capture(self) -> Result<Gemm, GemmError> {
        let (n, k) = (self.desc.n(), self.desc.k());
        if !self.isa.is_available() {
            return Err(GemmError::Isa { isa: self.isa });
        }
        aligned("the weights", self.weights.addr(), 64)?;
        aligned("the bias", self.bias.addr(), 4)?;
        match self.x {
            Activations::Quantised { blocks, row_stride_bytes } if self.desc.takes_quantised() => {
                aligned("activations", blocks.addr() | row_stride_bytes, align_of::<QBlock>())?;
                let needed = k / quant::BLOCK * size_of::<QBlock>();
                stride("activations", needed, row_stride_bytes)?;
            }
            Activations::F32 { values, row_stride } if !self.desc.takes_quantised() => {
                aligned("activations", values.addr(), 4)?;
                stride("activations", k * 4, row_stride * 4)?;
            }
            _ => return Err(GemmError::ActivationKind { format: self.desc.format() }),
        }
        match self.epilogue {
            Epilogue::Store { out, row_stride } | Epilogue::Add { out, row_stride } => {
                aligned("the output", out.addr(), 4)?;
                stride("the output", n * 4, row_stride * 4)?;
            }
            Epilogue::SwiGlu { up, out } => {
                aligned("the up weights", up.addr(), 64)?;
                if !self.bias.is_null() {
                    return Err(GemmError::SwiGluBias);
                }
                match out {
                    SwiGluOut::F32 { values, row_stride } => {
                        aligned("the output", values.addr(), 4)?;
                        stride("the output", n * 4, row_stride * 4)?;
                    }
                    SwiGluOut::Quantised { blocks, row_stride_bytes } => {
                        if !n.is_multiple_of(quant::BLOCK) {
                            return Err(GemmError::PartialBlock { n });
                        }
                        let needed = n / quant::BLOCK * size_of::<QBlock>();
                        aligned("the output", blocks.addr() | row_stride_bytes, 4)?;
                        stride("the output", needed, row_stride_bytes)?;
                    }
                }
            }
        }
        Ok(Gemm(self))
    }
}

fn aligned(what: &'static str, addr: usize, needed: usize) -> Result<(), GemmError> {
    match addr.is_multiple_of(needed) {
        true => Ok(()),
        false => Err(GemmError::Alignment { what, needed }),
    }
}

fn stride(what: &'static str, needed_bytes: usize, found_bytes: usize) -> Result<(), GemmError> {
    match found_bytes >= needed_bytes {
        true => Ok(()),
        false => Err(GemmError::Stride { what, needed_bytes, found_bytes }),
    }
}
