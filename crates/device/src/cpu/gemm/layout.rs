//! Tile formats as types, so that a kernel is compiled once for each with its branches gone.

use crate::cpu::tile_format::{QuantTile, TileFormat};

/// A quantised tile format.
pub(super) trait Layout {
    /// Its constants.
    const Q: QuantTile;
}

macro_rules! layouts {
    ($($name:ident),*) => {$(
        pub(super) struct $name;
        impl Layout for $name {
            const Q: QuantTile = match TileFormat::$name.quant() {
                Some(q) => q,
                None => unreachable!(),
            };
        }
    )*};
}

layouts!(U4Zero8, U4Min, U4Min32, U8Zero16, U8Zero128, U8Min, U8Min32, U8Halves32);

/// A float element type.
pub(super) trait FloatElem {
    /// Which.
    const FORMAT: FloatFormat;
    /// Bytes of an element.
    const BYTES: usize = match Self::FORMAT {
        FloatFormat::F32 => 4,
        FloatFormat::F16 | FloatFormat::BF16 => 2,
    };
}

/// The float formats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FloatFormat {
    F32,
    F16,
    BF16,
}

pub(super) struct F32;
pub(super) struct F16;
pub(super) struct BF16;

impl FloatElem for F32 {
    const FORMAT: FloatFormat = FloatFormat::F32;
}
impl FloatElem for F16 {
    const FORMAT: FloatFormat = FloatFormat::F16;
}
impl FloatElem for BF16 {
    const FORMAT: FloatFormat = FloatFormat::BF16;
}

/// Runs `$quantised` with `$l` bound to the layout of a quantised tile format, or `$float` with
/// `$e` bound to the element of a float one.
macro_rules! with_format {
    ($format:expr, $l:ident => $quantised:expr, $e:ident => $float:expr) => {{
        use $crate::cpu::gemm::layout;
        use $crate::cpu::tile_format::TileFormat;
        macro_rules! arm {
            ($name:ident, $t:ident, $call:expr) => {{
                type $name = layout::$t;
                $call
            }};
        }
        match $format {
            TileFormat::U4Zero8 => arm!($l, U4Zero8, $quantised),
            TileFormat::U4Min => arm!($l, U4Min, $quantised),
            TileFormat::U4Min32 => arm!($l, U4Min32, $quantised),
            TileFormat::U8Zero16 => arm!($l, U8Zero16, $quantised),
            TileFormat::U8Zero128 => arm!($l, U8Zero128, $quantised),
            TileFormat::U8Min => arm!($l, U8Min, $quantised),
            TileFormat::U8Min32 => arm!($l, U8Min32, $quantised),
            TileFormat::U8Halves32 => arm!($l, U8Halves32, $quantised),
            TileFormat::F32 => arm!($e, F32, $float),
            TileFormat::F16 => arm!($e, F16, $float),
            TileFormat::BF16 => arm!($e, BF16, $float),
        }
    }};
}
pub(super) use with_format;

/// Splits `$rows` rows into runs of the given constant sizes, largest first, and runs `$body` for
/// each with `$first` the run's first row and `$n` its size as a constant.
macro_rules! by_rows {
    ($rows:expr, [$($size:literal),*], $first:ident, $n:ident => $body:expr) => {{
        let mut done = 0;
        $(while $rows - done >= $size {
            const $n: usize = $size;
            let $first = done;
            $body;
            done += $size;
        })*
    }};
}
pub(super) use by_rows;

/// Runs `$body` for `$i` in `0..$n` (at most 16), written out: a loop of this size is otherwise
/// left rolled, and the accumulators that it indexes then live in memory.
macro_rules! unrolled {
    ($n:expr, $i:ident => $body:expr) => {
        unrolled!(@ $n, $i => $body; 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $n:expr, $i:ident => $body:expr; $($at:literal)*) => {
        {
            $(if $at < $n {
                let $i: usize = $at;
                $body
            })*
        }
    };
}
pub(super) use unrolled;
