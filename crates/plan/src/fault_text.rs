//! What each fault says, and what makes it go away.

use crate::hazard::{Fault, When};
use core::fmt;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::NoSuch { what, id, count } => {
                write!(f, "{what} #{id} is named, and the plan has {count}")
            }
            Fault::NameTwice { what, name } => write!(f, "two {what} are called {name}"),
            Fault::BoundTwice { name, first, then } => write!(
                f,
                "{name} is {} of {} bytes in one plan and {} of {} bytes in another",
                first.0, first.1, then.0, then.1
            ),
            Fault::BadAlign { buffer, align } => {
                write!(f, "{buffer} asks for an alignment of {align}, which is no power of two")
            }
            Fault::OutsideBuffer { touch, buffer_bytes } => {
                write!(f, "{touch}, which has {buffer_bytes} bytes")
            }
            Fault::EdgeBackwards { from, to, cycle, .. } if !cycle.is_empty() => write!(
                f,
                "{to} waits for {from}, which waits for it: {} - no replay would end",
                cycle.join(" -> ")
            ),
            Fault::EdgeBackwards { from, to, .. } => write!(
                f,
                "{to} waits for {from}, which the plan lists after it, so that a step run op by \
                 op would break the order"
            ),
            Fault::BadProgrammatic { to, why, .. } => {
                write!(f, "the programmatic launch of {to} {why}")
            }
            Fault::WrongLane { op, lane, host_op: true } => {
                write!(f, "{op} runs on the host and stands on device lane {lane}")
            }
            Fault::WrongLane { op, .. } => {
                write!(f, "{op} runs on a device and stands on lane host")
            }
            Fault::HostTouchesDevice { touch } => {
                write!(f, "{touch}, which only device lanes may touch")
            }
            Fault::Race { first, second, bytes } => {
                let again = second.when == When::NextStep;
                write!(
                    f,
                    "{second} and {first}, {} bytes in common, and {}",
                    bytes.end - bytes.start,
                    if again {
                        "nothing ends the one before the other begins a step later"
                    } else {
                        "neither lane order nor an event orders the two"
                    }
                )
            }
            Fault::Aliasing { first, second, arena } => write!(
                f,
                "arena[{}..{}] goes from {} to {}; {} (lane {}) may write {} before {} (lane {}) \
                 has done with {}",
                arena.start,
                arena.end,
                first.buffer_name,
                second.buffer_name,
                second.op_name,
                second.lane_name,
                second.buffer_name,
                first.op_name,
                first.lane_name,
                first.buffer_name
            ),
            Fault::SharedInOut { a, b, arena } => write!(
                f,
                "{a} and {b} share arena[{}..{}], and inputs and outputs live across steps",
                arena.start, arena.end
            ),
            Fault::Placement { buffer, placed: false } => {
                write!(f, "{buffer} belongs in the arena and has no place there")
            }
            Fault::Placement { buffer, .. } => {
                write!(f, "{buffer} has a place in the arena and does not belong there")
            }
            Fault::Misaligned { buffer, offset, align } => {
                write!(f, "{buffer} lies at {offset}, which is not a multiple of {align}")
            }
            Fault::OutsideArena { buffer, arena, arena_bytes } => write!(
                f,
                "{buffer} lies at arena[{}..{}], and the arena has {arena_bytes} bytes",
                arena.start, arena.end
            ),
            Fault::IndexedNotState { touch } => {
                write!(f, "{touch}, which is neither pages nor slots")
            }
            Fault::TableNotRead { touch } => {
                write!(f, "{touch}, and the op does not declare that it reads that table")
            }
            Fault::TableNotInput { touch } => {
                write!(
                    f,
                    "{touch}, a table that the host does not write, so no lease vouches for it"
                )
            }
            Fault::Undefined { read, bytes } => write!(
                f,
                "{read}, and no op before it in this step writes bytes {}..{}",
                bytes.start, bytes.end
            ),
            Fault::ReachesPadding { touch } => {
                write!(f, "{touch} with every row in reach, padded ones too")
            }
            Fault::NoRowView { touch } => {
                write!(f, "{touch}, a buffer of rows, without saying which row sees which")
            }
            Fault::WrongAxis { touch } => write!(f, "{touch} row by row along another axis"),
            Fault::PaddedWrite { touch } => {
                write!(f, "{touch}, and its padded rows have no reserved page or slot")
            }
            Fault::PaddedTable { table, touch } => {
                write!(f, "{touch}, and padded entries of {table} do not name page or slot 0")
            }
            Fault::LiveStride { touch } => {
                write!(f, "{touch} with a stride that follows the live batch")
            }
            Fault::OtherStride { touch, stride, buffer_stride } => {
                write!(
                    f,
                    "{touch} with a stride of {stride} bytes where rows are {buffer_stride} apart"
                )
            }
            Fault::ShortBuffer { buffer, bytes, needed } => {
                write!(f, "{buffer} has {bytes} bytes and the bucket's rows need {needed}")
            }
            Fault::Frozen { op, decision } => {
                write!(
                    f,
                    "{op} decides its {decision} by the live batch, which capture would freeze"
                )
            }
            Fault::NoWrites { op } => {
                write!(f, "{op} declares no write: its results or its scratch are not in the plan")
            }
            Fault::Undeclared { touch } => write!(f, "{touch} and does not declare it"),
            Fault::WeightWritten { touch } => write!(f, "{touch}, a weight, while plans are live"),
        }
    }
}

impl Fault {
    /// What makes it go away, where no single edge does.
    pub(crate) fn fix(&self) -> String {
        let s = match self {
            Fault::NoSuch { .. } => "use an id that the builder returned",
            Fault::NameTwice { .. } => "give each its own name",
            Fault::BoundTwice { .. } => "drain first: the two plans cannot share state",
            Fault::BadAlign { .. } => "use a power of two, 64 by default",
            Fault::OutsideBuffer { .. } => "shorten the span, or enlarge the buffer",
            Fault::EdgeBackwards { cycle, .. } if !cycle.is_empty() => "drop one of these edges",
            Fault::EdgeBackwards { .. } => "list the op that waits after the one it waits for",
            Fault::BadProgrammatic { .. } => "use an event edge",
            Fault::WrongLane { .. } => "host ops, and only those, go on lane 0",
            Fault::HostTouchesDevice { .. } => "hand it over in an input or an output",
            Fault::Race { .. } => "order the two ops with an event, or put them on one lane",
            Fault::Aliasing { .. } => "pack by the partial order: their lifetimes overlap",
            Fault::SharedInOut { .. } => "give each input and output bytes of its own",
            Fault::Placement { .. } | Fault::OutsideArena { .. } | Fault::Misaligned { .. } => {
                "pack this plan again; a packing belongs to one plan"
            }
            Fault::IndexedNotState { .. } => "declare the span, or make the buffer state",
            Fault::TableNotRead { .. } => "add the table to the op's reads",
            Fault::TableNotInput { .. } => "write through an input table that the pool fills",
            Fault::Undefined { read, bytes } => {
                return format!(
                    "write {}[{}..{}] in an op that is ordered before {}, or make it state",
                    read.buffer_name, bytes.start, bytes.end, read.op_name
                );
            }
            Fault::ReachesPadding { .. } => "read row by row or through a table of live rows",
            Fault::NoRowView { .. } => "give the access a row view",
            Fault::WrongAxis { .. } => "gather through a table from one axis to the other",
            Fault::PaddedWrite { .. } => "write through a table whose padded entries are reserved",
            Fault::PaddedTable { .. } => "pad the table with 0",
            Fault::LiveStride { .. } | Fault::OtherStride { .. } => {
                "use the buffer's own stride, a function of the bucket"
            }
            Fault::ShortBuffer { .. } => "size the buffer by the bucket's capacity",
            Fault::Frozen { .. } => {
                "decide inside the kernel, by the bucket, or make another bucket key of it"
            }
            Fault::NoWrites { .. } => "declare every buffer that it writes, scratch too",
            Fault::Undeclared { .. } => "declare the access as the op's kind does",
            Fault::WeightWritten { .. } => "stage new weights in a new generation",
        };
        s.into()
    }
}
