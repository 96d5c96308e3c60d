//! A model on disk: its facts and every tensor it needs, by role, whatever the container.

use core::ops::Range;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use lockstep_plan::format::{Format, decode_blocks};

use crate::digest::{self, Digest};
use crate::error::{Found, WeightsError};
use crate::file::SourceFile;
use crate::gguf::{self, FactsFault, GgufFault, GgufHeader};
use crate::hf;
use crate::layout;
use crate::narrow::Coding;
use crate::role::Role;
use crate::spec::ModelSpec;
use crate::v4::{self, V4Place, V4Role};
use crate::vocab::VocabData;

/// A weight tensor as it is stored: `rows` rows of `cols` elements, row after row, each of whole
/// blocks. A vector has one row.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TensorRef<'a> {
    /// The tensor's name in its file.
    pub name: &'a str,
    pub format: Format,
    pub rows: usize,
    pub cols: usize,
    pub bytes: &'a [u8],
    /// How `bytes` are coded where they are not elements of `format`; `format` then is what holds
    /// the decoded elements.
    pub coding: Option<Coding<'a>>,
}

impl<'a> TensorRef<'a> {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows
    }

    /// The stored bytes of a row.
    ///
    /// # Panics
    /// When `row >= rows`.
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {} in `{}`", self.rows, self.name);
        &self.bytes[row * self.row_bytes()..][..self.row_bytes()]
    }

    /// Decodes the whole tensor to f32, `rows x cols`.
    pub fn decode(&self) -> Vec<f32> {
        if let Some(coding) = &self.coding {
            return coding.decode(self.bytes, self.rows, self.cols);
        }
        let mut out = vec![0.0; self.rows * self.cols];
        decode_blocks(self.format, self.bytes, &mut out);
        out
    }
}

impl<'a> TensorRef<'a> {
    /// The tensor as elements of `format`, decoded where it is coded. Elements of BF16 are exact:
    /// four significant bits and a power of two.
    pub fn elements(&self) -> Cow<'a, [u8]> {
        if self.coding.is_none() {
            return Cow::Borrowed(self.bytes);
        }
        let values = self.decode();
        Cow::Owned(match self.format {
            Format::BF16 => {
                values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect()
            }
            _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }
}

/// An opened model. Every role that its spec asks for is present with the shape it must have.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    spec: ModelSpec,
    files: Vec<SourceFile>,
    /// The parsed header where the container is GGUF.
    gguf: Option<GgufHeader>,
    tensors: BTreeMap<Role, Entry>,
    digest: OnceLock<Digest>,
    /// Of a checkpoint without weights: the seed that its values follow from.
    seed: Option<u64>,
}

/// A tensor of one file, before or after its role was found.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub file: usize,
    pub name: String,
    /// The served format, or the name of the type that is not served.
    pub format: Result<Format, String>,
    /// Slowest-varying dimension first.
    pub shape: Vec<u64>,
    pub range: Range<usize>,
    /// Where the elements are coded.
    pub coded: Option<Coded>,
}

/// How an entry's elements are coded; the scales lie in the file `scales.0`.
#[derive(Clone, Debug)]
pub(crate) struct Coded {
    pub kind: CodedKind,
    pub scales: (usize, Range<usize>),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum CodedKind {
    Fp8,
    Mxfp4,
    Nvfp4 { global: f32 },
}

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face folder, maps its files and checks everything but the
    /// weights' values.
    pub fn open(path: &Path) -> Result<Checkpoint, WeightsError> {
        if path.is_dir() { Checkpoint::open_folder(path) } else { Checkpoint::open_file(path) }
    }

    fn open_file(path: &Path) -> Result<Checkpoint, WeightsError> {
        let file = SourceFile::open(path)?;
        if !file.bytes().starts_with(b"GGUF") {
            let found = match path.extension() {
                Some(e) if e == "safetensors" => Found::SafetensorsFile,
                _ => Found::OtherFile,
            };
            return Err(WeightsError::NotAModel { path: path.to_path_buf(), found });
        }
        Checkpoint::from_gguf(file)
    }

    /// Opens a GGUF file that is already mapped or in memory.
    pub fn from_gguf(file: SourceFile) -> Result<Checkpoint, WeightsError> {
        let path = file.path().to_path_buf();
        let fault = |fault: GgufFault| WeightsError::Gguf { file: path.clone(), fault };
        let header = GgufHeader::parse(file.bytes()).map_err(fault)?;
        let factors = header.tensors.iter().find(|t| t.name == Role::RopeFactors.gguf_name());
        let factors = factors.map(|t| {
            let elems = t.range.len() / t.format.block_bytes() * t.format.block_elems();
            let mut out = vec![0.0; elems];
            decode_blocks(t.format, &file.bytes()[t.range.clone()], &mut out);
            out
        });
        let spec = gguf::model_spec(&header, file.bytes(), factors).map_err(|e| match e {
            FactsFault::Gguf(f) => fault(f),
            FactsFault::Spec(f) => WeightsError::Spec { file: path.clone(), fault: f },
        })?;
        let entries = header.tensors.iter().map(|t| Entry {
            file: 0,
            name: t.name.clone(),
            format: Ok(t.format),
            shape: t.dims.iter().rev().copied().collect(),
            range: t.range.clone(),
            coded: None,
        });
        let entries: Vec<Entry> = entries.collect();
        let files = vec![file];
        let tensors = layout::assign(&path, &spec, &files, entries, layout::Container::Gguf)?;
        let digest = OnceLock::new();
        Ok(Checkpoint { path, spec, files, gguf: Some(header), tensors, digest, seed: None })
    }

    fn open_folder(folder: &Path) -> Result<Checkpoint, WeightsError> {
        let config = hf::read_config(folder)?;
        // The architecture first: an unsupported one is told before its shards are looked for.
        let config_error = |e: hf::ConfigError| e.at(hf::config_path(folder));
        config.model_spec(true).map_err(config_error)?;
        let shards = hf::open_shards(folder)?;
        let (mut files, mut entries) = (Vec::new(), Vec::new());
        for (n, shard) in shards.into_iter().enumerate() {
            files.push(shard.file);
            entries.extend(shard.tensors.into_iter().map(|t| Entry {
                file: n,
                format: t.format().ok_or_else(|| t.dtype.clone()),
                name: t.name,
                shape: t.shape,
                range: t.range,
                coded: None,
            }));
        }
        let has_head = entries.iter().any(|e| Role::Head.hf_name().is_some_and(|n| n == e.name));
        let spec = config.model_spec(has_head).map_err(config_error)?;
        let container = layout::Container::Safetensors;
        let tensors = layout::assign(folder, &spec, &files, entries, container)?;
        let (path, digest) = (folder.to_path_buf(), OnceLock::new());
        Ok(Checkpoint { path, spec, files, gguf: None, tensors, digest, seed: None })
    }

    /// A model of the shapes in `folder`'s `config.json` with no weights of its own: bf16 matrices
    /// whose values follow from `seed`, norms of 1, biases of 0. Its tensors have no bytes. For
    /// measurements without a download.
    pub fn dummy(folder: &Path, seed: u64) -> Result<Checkpoint, WeightsError> {
        let config = hf::read_config(folder)?;
        let config_error = |e: hf::ConfigError| e.at(hf::config_path(folder));
        let spec = config.model_spec(true).map_err(config_error)?;
        let ModelSpec::Llama(llama) = &spec else {
            return Err(WeightsError::NoSeeded { path: folder.to_path_buf() });
        };
        let tensors = layout::roles(llama).map(|(role, shape)| {
            let (name, format) = (role.to_string(), Ok(Format::BF16));
            (role, Entry { file: 0, name, format, shape: shape.to_vec(), range: 0..0, coded: None })
        });
        let tensors = tensors.filter(|(role, _)| *role != Role::RopeFactors).collect();
        let (path, digest) = (folder.to_path_buf(), OnceLock::new());
        let file = SourceFile::in_memory(&path, Vec::new());
        Ok(Checkpoint {
            path,
            spec,
            files: vec![file],
            gguf: None,
            tensors,
            digest,
            seed: Some(seed),
        })
    }

    /// The seed of a model without weights of its own ([`Checkpoint::dummy`]).
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The file or folder that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// The folder with `tokenizer.json`, where the model is a Hugging Face folder.
    pub fn folder(&self) -> Option<&Path> {
        self.gguf.is_none().then_some(self.path.as_path())
    }

    /// The header of a GGUF file, for its metadata.
    pub fn gguf(&self) -> Option<&GgufHeader> {
        self.gguf.as_ref()
    }

    /// Tokenizer data of a GGUF file; `None` where the file has none or is a folder.
    pub fn vocab(&self) -> Result<Option<VocabData>, WeightsError> {
        let Some(header) = &self.gguf else { return Ok(None) };
        gguf::vocab_data(header, self.files[0].bytes())
            .map_err(|fault| WeightsError::Gguf { file: self.path.clone(), fault })
    }

    /// The tensor of a role. A tied head is the embedding; roles that the spec does not ask for
    /// (a bias, a norm) are `None`.
    pub fn tensor(&self, role: Role) -> Option<TensorRef<'_>> {
        let tied = matches!(&self.spec, ModelSpec::Llama(spec) if spec.tied_head);
        let role = if role == Role::Head && tied { Role::Embed } else { role };
        self.tensors.get(&role).map(|e| self.view(e))
    }

    /// The experts of every token, `vocab x experts_per_token`, where a table chooses the experts of
    /// `layer`.
    pub fn expert_table(&self, layer: u32) -> Option<Vec<u32>> {
        let ModelSpec::DeepSeekV4(spec) = &self.spec else { return None };
        let t = self.tensor(Role::V4(V4Place::Layer(layer), V4Role::RouterTable))?;
        let ids = v4::layout::table(t.bytes, spec.vocab as usize * spec.experts_per_token as usize);
        // Every id was found to be below the number of experts when the file was opened.
        Some(ids.into_iter().map(|id| id as u32).collect())
    }

    /// Every stored tensor in canonical order; a tied head does not appear a second time.
    pub fn tensors(&self) -> impl Iterator<Item = (Role, TensorRef<'_>)> {
        self.tensors.iter().map(|(&role, e)| (role, self.view(e)))
    }

    /// Bytes of all weights as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.tensors.values().map(|e| e.range.len() as u64).sum()
    }

    /// SHA-256 over roles, formats, shapes and bytes: what a file is named, how it is aligned and
    /// sharded and its metadata do not enter. Computed on the first call by up to `threads`
    /// threads, then kept.
    pub fn digest(&self, threads: usize) -> Digest {
        *self.digest.get_or_init(|| {
            let all: Vec<_> = self.tensors().collect();
            digest::of_tensors(&all, threads)
        })
    }

    fn view<'a>(&'a self, e: &'a Entry) -> TensorRef<'a> {
        let format = *e.format.as_ref().expect("assigned tensors have a served format");
        let cols = *e.shape.last().expect("assigned tensors have a shape") as usize;
        let rows = e.shape[..e.shape.len() - 1].iter().product::<u64>() as usize;
        let bytes = &self.files[e.file].bytes()[e.range.clone()];
        let coding = e.coded.as_ref().map(|c| {
            let scales = &self.files[c.scales.0].bytes()[c.scales.1.clone()];
            match c.kind {
                CodedKind::Fp8 => Coding::Fp8 { scales },
                CodedKind::Mxfp4 => Coding::Mxfp4 { scales },
                CodedKind::Nvfp4 { global } => Coding::Nvfp4 { scales, global },
            }
        });
        TensorRef { name: &e.name, format, rows, cols, bytes, coding }
    }
}
