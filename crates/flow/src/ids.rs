//! Newtypes for the small integers that are otherwise silently mixed up.

use core::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            /// The value as an index; every id fits a `usize` on the 64-bit targets we build for.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A vocabulary id.
    Token(u32)
);
id!(
    /// A request's number, unique for the life of the process.
    RequestId(u64)
);
id!(
    /// A page of the token pool. Page 0 is reserved: padded rows write there.
    PageId(u32)
);
id!(
    /// A sequence slot: the place of per-sequence state (last token, rings) on the device.
    /// Slot 0 is reserved for padding.
    SlotId(u32)
);
id!(
    /// A row of a step: an index in `0..T`, `0..S` or `0..R` of the bucket.
    Row(u32)
);
id!(
    /// A token's position in its sequence, from 0.
    Position(u32)
);
id!(
    /// A random seed; what is drawn from it is a function of (seed, choice, position) alone.
    Seed(u64)
);

impl PageId {
    /// The page that padded rows write to and nothing live reads.
    pub const PADDING: PageId = PageId(0);
}

impl SlotId {
    /// The slot of padded rows.
    pub const PADDING: SlotId = SlotId(0);
}
