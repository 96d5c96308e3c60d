//! What is kept of every token: rows, index keys and the compressors' state, by page.

use crate::emit::Emit;
use crate::inputs::TOKEN_PAGE_BYTES;
use crate::{PlanShape, SubPool};
use lockstep_flow::limits::PAGE_TOKENS;
use lockstep_plan::{BufferId, Elem, KvDtype, RowCode, StateKind};
use lockstep_weights::{Compression, DeepSeekV4Spec, V4Place};

/// One kind of paged rows of a layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Paged {
    /// Key-value rows of the window: one a token.
    Window,
    /// Compressed key-value rows.
    Rows,
    /// Values and gates of the compressor: one row a token.
    State,
    /// Compressed index keys.
    IndexRows,
    /// Values and gates of the indexer's compressor: one row a token.
    IndexState,
}

impl Paged {
    const ALL: [Paged; 5] =
        [Paged::Window, Paged::Rows, Paged::State, Paged::IndexRows, Paged::IndexState];

    const fn name(self) -> &'static str {
        match self {
            Paged::Window => "window_pages",
            Paged::Rows => "compressed_pages",
            Paged::State => "compressor_pages",
            Paged::IndexRows => "index_pages",
            Paged::IndexState => "index_compressor_pages",
        }
    }

    /// Floats of a row and tokens of a row; `None` where a layer has no such rows.
    pub fn row(self, spec: &DeepSeekV4Spec, compression: Compression) -> Option<(u32, u32)> {
        let indexed = compression == Compression::C4;
        let ratio = compression.ratio();
        match self {
            Paged::Window => Some((spec.head_dim, 1)),
            Paged::Rows => ratio.map(|m| (spec.head_dim, m)),
            Paged::State => ratio.map(|_| (2 * compression.overlap() * spec.head_dim, 1)),
            Paged::IndexRows => indexed.then_some((spec.index_head_dim, 4)),
            Paged::IndexState => indexed.then_some((4 * spec.index_head_dim, 1)),
        }
    }

    /// How its rows are kept.
    pub fn code(self, spec: &DeepSeekV4Spec, shape: &PlanShape) -> RowCode {
        match self {
            Paged::Window | Paged::Rows => row_code(spec, shape),
            Paged::IndexRows => shape.index_dtype.code(),
            Paged::State | Paged::IndexState => RowCode::F32,
        }
    }

    /// Bytes of a page: a page has the rows whose last token lies in it, or room for one.
    fn page_bytes(
        self,
        spec: &DeepSeekV4Spec,
        compression: Compression,
        shape: &PlanShape,
    ) -> Option<u64> {
        let (channels, tokens) = self.row(spec, compression)?;
        let rows = (PAGE_TOKENS / tokens).max(1);
        Some(u64::from(self.code(spec, shape).row_bytes(channels)) * u64::from(rows))
    }

    /// Declares the pages of a layer, or of a prediction block.
    pub fn declare(self, e: &mut Emit<'_>, spec: &DeepSeekV4Spec, place: V4Place) -> BufferId {
        let compression = match place {
            V4Place::Layer(n) => spec.compression[n as usize],
            V4Place::Top | V4Place::Mtp(_) => Compression::Window,
        };
        let page_bytes = self.page_bytes(spec, compression, e.shape);
        let page_bytes = page_bytes.expect("asked for where the layer has such rows");
        let kind = StateKind::Pages { page_bytes };
        let elem = match self.code(spec, e.shape) {
            RowCode::F32 => Elem::F32,
            code => Elem::Rows(code),
        };
        e.b.state(self.buffer(place), kind, e.shape.pages, elem)
    }

    fn buffer(self, place: V4Place) -> String {
        format!("{place}{}", self.name())
    }
}

/// How key-value rows are kept.
pub fn row_code(spec: &DeepSeekV4Spec, shape: &PlanShape) -> RowCode {
    match shape.kv_dtype {
        KvDtype::F32 | KvDtype::F16 => RowCode::F32,
        KvDtype::Bf16 => RowCode::Bf16,
        KvDtype::Fp8 => RowCode::Fp8 { rotary: spec.rotary_dim },
    }
}

/// Pages of the streams of every token, which the prediction block reads when the next token is
/// known.
const STREAM_PAGES: &str = "stream_pages";

fn stream_page_bytes(spec: &DeepSeekV4Spec) -> u64 {
    u64::from(spec.stream_width()) * u64::from(PAGE_TOKENS) * 4
}

/// Declares the pages of the streams.
pub fn declare_streams(e: &mut Emit<'_>, spec: &DeepSeekV4Spec) -> BufferId {
    let kind = StateKind::Pages { page_bytes: stream_page_bytes(spec) };
    e.b.state(STREAM_PAGES, kind, e.shape.pages, Elem::F32)
}

/// The sub-pools, as operators see them: token ids, the window, compressed rows by ratio, index
/// keys, the compressors' state, and what a prediction block keeps where it drafts.
pub fn sub_pools(spec: &DeepSeekV4Spec, shape: &PlanShape) -> Vec<SubPool> {
    let tokens = vec![("token_pages".to_string(), TOKEN_PAGE_BYTES)];
    let mut pools = vec![SubPool { name: "tokens".into(), buffers: tokens }];
    for (layer, &compression) in (0..).zip(&spec.compression) {
        for paged in Paged::ALL {
            let Some(bytes) = paged.page_bytes(spec, compression, shape) else { continue };
            let name = match (paged, compression) {
                (Paged::Window, _) => "window",
                (Paged::Rows, Compression::C128) => "c128",
                (Paged::Rows, _) => "c4",
                (Paged::IndexRows, _) => "index",
                (Paged::State | Paged::IndexState, _) => "compressor",
            };
            let buffer = (paged.buffer(V4Place::Layer(layer)), bytes);
            match pools.iter_mut().find(|p| p.name == name) {
                Some(pool) => pool.buffers.push(buffer),
                None => pools.push(SubPool { name: name.into(), buffers: vec![buffer] }),
            }
        }
    }
    if shape.drafts > 0 {
        let window = Paged::Window;
        let bytes = window.page_bytes(spec, Compression::Window, shape);
        let bytes = bytes.expect("every block has a window");
        let buffers = vec![
            (window.buffer(V4Place::Mtp(0)), bytes),
            (STREAM_PAGES.into(), stream_page_bytes(spec)),
        ];
        pools.push(SubPool { name: "mtp".into(), buffers });
    }
    pools
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_hold_the_rows_that_close_in_them() {
        assert_eq!(PAGE_TOKENS, 32);
        let spec = lockstep_weights::config_spec(include_bytes!(
            "../../../../fixtures/dsv4-tiny/config.json"
        ));
        let Ok(lockstep_weights::ModelSpec::DeepSeekV4(spec)) = spec else { panic!("{spec:?}") };
        let shape = |drafts, kv_dtype| PlanShape {
            pages: 4,
            slots: 2,
            context_tokens: 64,
            kv_dtype,
            index_dtype: lockstep_plan::IndexDtype::Fp4,
            lanes: 1,
            drafts,
        };
        let f32_rows = shape(0, KvDtype::F32);
        let bytes = |paged: Paged, c| paged.page_bytes(&spec, c, &f32_rows);
        let fp8 = Paged::Window.page_bytes(&spec, Compression::C4, &shape(0, KvDtype::Fp8));
        assert_eq!(fp8, Some(32 * (48 + 2 * 16 + 8)));
        assert_eq!(bytes(Paged::Window, Compression::Window), Some(32 * 64 * 4));
        assert_eq!(bytes(Paged::Rows, Compression::Window), None);
        assert_eq!(bytes(Paged::Rows, Compression::C4), Some(8 * 64 * 4));
        assert_eq!(bytes(Paged::Rows, Compression::C128), Some(64 * 4));
        assert_eq!(bytes(Paged::State, Compression::C4), Some(32 * 256 * 4));
        assert_eq!(bytes(Paged::State, Compression::C128), Some(32 * 128 * 4));
        assert_eq!(bytes(Paged::IndexRows, Compression::C4), Some(8 * (32 / 2 + 4)));
        assert_eq!(bytes(Paged::IndexState, Compression::C128), None);
        let names = |drafts| -> Vec<String> {
            sub_pools(&spec, &shape(drafts, KvDtype::F32)).into_iter().map(|p| p.name).collect()
        };
        assert_eq!(names(1).last().map(String::as_str), Some("mtp"));
        let names = names(0);
        assert_eq!(names, ["tokens", "window", "c4", "compressor", "index", "c128"]);
    }
}
