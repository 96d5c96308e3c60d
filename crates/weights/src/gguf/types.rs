//! Tensor type ids of GGUF files.

use lockstep_plan::format::Format;

/// The format of a type id, or `None` where it is not served.
pub(super) const fn format_of(id: u32) -> Option<Format> {
    Some(match id {
        0 => Format::F32,
        1 => Format::F16,
        2 => Format::Q4_0,
        3 => Format::Q4_1,
        6 => Format::Q5_0,
        7 => Format::Q5_1,
        8 => Format::Q8_0,
        12 => Format::Q4_K,
        13 => Format::Q5_K,
        14 => Format::Q6_K,
        30 => Format::BF16,
        _ => return None,
    })
}

/// The name of a type id, so that an error can say what a file holds.
pub(super) const fn type_name(id: u32) -> &'static str {
    const NAMES: [&str; 42] = [
        "F32",
        "F16",
        "Q4_0",
        "Q4_1",
        "Q4_2",
        "Q4_3",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "Q8_1",
        "Q2_K",
        "Q3_K",
        "Q4_K",
        "Q5_K",
        "Q6_K",
        "Q8_K",
        "IQ2_XXS",
        "IQ2_XS",
        "IQ3_XXS",
        "IQ1_S",
        "IQ4_NL",
        "IQ3_S",
        "IQ2_S",
        "IQ4_XS",
        "I8",
        "I16",
        "I32",
        "I64",
        "F64",
        "IQ1_M",
        "BF16",
        "Q4_0_4_4",
        "Q4_0_4_8",
        "Q4_0_8_8",
        "TQ1_0",
        "TQ2_0",
        "IQ4_NL_4_4",
        "IQ4_NL_4_8",
        "IQ4_NL_8_8",
        "MXFP4",
        "NVFP4",
        "Q1_0",
    ];
    if (id as usize) < NAMES.len() { NAMES[id as usize] } else { "unknown" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_agree() {
        let mut served = 0;
        for id in 0..64 {
            if let Some(format) = format_of(id) {
                assert_eq!(format.name(), type_name(id));
                served += 1;
            }
        }
        assert_eq!(served, Format::ALL.len());
        assert_eq!(type_name(64), "unknown");
    }
}
