//! The figures of "Networked Device Driver Architecture (2012)", chapter 6, as printed.
//!
//! The tests check the tables against each other and against the text. [`REMARKS`] lists the contradictions.

/// A table of figures by row and column.
#[derive(Debug)]
pub(crate) struct Grid {
    /// Its number in the dissertation.
    pub(crate) table: &'static str,
    pub(crate) title: &'static str,
    pub(crate) unit: &'static str,
    /// Parameters of the rows and of the columns, named as those of a measurement.
    pub(crate) axes: [&'static str; 2],
    pub(crate) columns: &'static [u64],
    pub(crate) rows: &'static [(&'static str, &'static [u64])],
}

impl Grid {
    /// Returns the figure of this row and column, if the dissertation has one.
    pub(crate) fn at(&self, row: &str, column: u64) -> Option<f64> {
        let at = self.columns.iter().position(|known| *known == column)?;
        let (_, figures) = self.rows.iter().find(|(label, _)| *label == row)?;
        figures.get(at).map(|figure| *figure as f64)
    }
}

/// Table 6.1.
pub(crate) static END_TO_END: Grid = Grid {
    table: "6.1",
    title: "End-to-end time, whole system",
    unit: "us",
    axes: ["link", "bytes"],
    columns: &[1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("pipe", &[632, 819, 1287, 5408, 10_320, 45_942, 91_988]),
        ("shm", &[618, 826, 1270, 5739, 11_539, 44_322, 90_032]),
    ],
};

/// Table 6.2.
pub(crate) static SINGLE_MACHINE: Grid = Grid {
    table: "6.2",
    title: "End-to-end time, single machine",
    unit: "us",
    axes: ["link", "bytes"],
    columns: &[100, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("pipe", &[46, 34, 32, 58, 56, 106, 173, 597, 1742]),
        ("shm", &[41, 35, 43, 42, 56, 99, 137, 564, 2233]),
    ],
};

/// Table 6.6.
pub(crate) static SYSTEM_PIPE: Grid = Grid {
    table: "6.6",
    title: "Whole system by pairs, pipes",
    unit: "us",
    axes: ["pairs", "bytes"],
    columns: &[1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("0", &[632, 819, 1287, 5408, 10_320, 45_942, 91_988]),
        ("1", &[636, 862, 1326, 5348, 9741, 46_190, 96_547]),
        ("2", &[675, 904, 1374, 5320, 9980, 48_432, 100_604]),
        ("3", &[699, 940, 1432, 5438, 10_130, 52_189, 105_845]),
        ("4", &[746, 985, 1483, 5666, 10_916, 53_984, 113_937]),
        ("5", &[774, 1028, 1532, 5850, 11_452, 56_794, 115_333]),
        ("6", &[837, 1322, 1851, 6070, 11_890, 64_064, 122_761]),
    ],
};

/// Table 6.7.
pub(crate) static SYSTEM_SHARED: Grid = Grid {
    table: "6.7",
    title: "Whole system by pairs, shared memory",
    unit: "us",
    axes: ["pairs", "bytes"],
    columns: &[1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("0", &[618, 826, 1270, 5739, 11_539, 44_322, 90_032]),
        ("1", &[661, 856, 1310, 5766, 11_640, 44_586, 89_827]),
        ("2", &[690, 889, 1344, 6064, 11_694, 44_733, 92_354]),
        ("3", &[723, 946, 1381, 6596, 11_924, 46_218, 90_688]),
        ("4", &[754, 1190, 1410, 5515, 11_741, 43_680, 89_388]),
        ("5", &[790, 1216, 1454, 5915, 13_217, 47_402, 90_729]),
        ("6", &[818, 1024, 1474, 6012, 11_750, 45_184, 91_168]),
    ],
};

/// Table 6.8.
pub(crate) static MACHINE_PIPE: Grid = Grid {
    table: "6.8",
    title: "Single machine by pairs, pipes",
    unit: "us",
    axes: ["pairs", "bytes"],
    columns: &[100, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("0", &[46, 34, 32, 58, 56, 106, 173, 597, 1742]),
        ("1", &[56, 59, 58, 69, 86, 176, 344, 1259, 3797]),
        ("2", &[85, 87, 82, 98, 107, 242, 459, 2117, 5571]),
        ("3", &[84, 100, 88, 117, 142, 308, 605, 2830, 7872]),
        ("4", &[110, 108, 120, 127, 158, 400, 720, 4114, 9680]),
        ("5", &[123, 127, 119, 150, 188, 460, 918, 5264, 11_593]),
        ("6", &[150, 137, 148, 168, 219, 514, 1019, 6495, 14_034]),
        ("7", &[156, 158, 163, 195, 244, 605, 1190, 7303, 15_555]),
        ("8", &[181, 166, 181, 202, 246, 672, 1375, 8342, 18_376]),
    ],
};

/// Table 6.9.
pub(crate) static MACHINE_SHARED: Grid = Grid {
    table: "6.9",
    title: "Single machine by pairs, shared memory",
    unit: "us",
    axes: ["pairs", "bytes"],
    columns: &[100, 500, 1000, 5000, 10_000, 50_000, 100_000, 500_000, 1_024_000],
    rows: &[
        ("0", &[41, 35, 43, 42, 56, 99, 137, 564, 2233]),
        ("1", &[63, 59, 63, 75, 80, 128, 154, 612, 2234]),
        ("2", &[79, 83, 75, 87, 103, 134, 207, 593, 2237]),
        ("3", &[104, 99, 101, 99, 127, 156, 180, 641, 2283]),
        ("4", &[118, 113, 130, 125, 134, 181, 207, 619, 2188]),
        ("5", &[126, 144, 130, 136, 164, 192, 233, 712, 2193]),
        ("6", &[154, 155, 171, 161, 171, 212, 253, 665, 2260]),
        ("7", &[173, 173, 172, 175, 194, 223, 262, 643, 2340]),
        ("8", &[195, 188, 185, 206, 218, 261, 343, 633, 2279]),
    ],
};

/// Table 6.10.
pub(crate) static FRAMES_PIPE: Grid = Grid {
    table: "6.10",
    title: "Time between frames by pairs, pipes",
    unit: "us",
    axes: ["pairs", "side"],
    columns: &[100, 200, 300, 400, 500, 600, 700],
    rows: &[
        ("0", &[2915, 11_281, 27_523, 43_761, 75_776, 112_462, 165_544]),
        ("1", &[3321, 12_492, 30_766, 49_554, 84_825, 112_714, 166_403]),
        ("2", &[3362, 12_554, 31_057, 51_241, 86_899, 115_094, 169_070]),
        ("3", &[3478, 12_795, 31_710, 51_958, 88_636, 117_945, 172_447]),
        ("4", &[3555, 12_903, 32_237, 53_069, 91_230, 120_553, 176_393]),
        ("5", &[3559, 13_239, 33_684, 54_745, 92_584, 124_439, 179_495]),
        ("6", &[3552, 13_479, 34_438, 55_928, 94_546, 125_136, 182_701]),
        ("7", &[3646, 13_973, 34_774, 57_019, 96_342, 126_648, 185_991]),
        ("8", &[3691, 14_338, 35_657, 58_412, 98_516, 128_457, 189_348]),
    ],
};

/// Table 6.11.
pub(crate) static FRAMES_SHARED: Grid = Grid {
    table: "6.11",
    title: "Time between frames by pairs, shared memory",
    unit: "us",
    axes: ["pairs", "side"],
    columns: &[100, 200, 300, 400, 500, 600, 700],
    rows: &[
        ("0", &[2576, 10_297, 23_227, 47_972, 75_864, 109_041, 148_327]),
        ("1", &[2876, 11_664, 26_845, 48_269, 75_334, 108_052, 147_537]),
        ("2", &[3088, 11_680, 26_506, 47_000, 75_642, 109_044, 148_317]),
        ("3", &[2961, 11_985, 27_138, 48_199, 75_689, 108_325, 148_042]),
        ("4", &[2949, 11_924, 27_277, 48_398, 75_235, 108_492, 148_277]),
        ("5", &[2952, 11_871, 27_040, 48_081, 75_519, 109_543, 147_986]),
        ("6", &[3060, 11_915, 27_019, 48_025, 75_343, 108_811, 147_808]),
        ("7", &[3064, 12_068, 27_137, 48_367, 75_887, 109_354, 148_276]),
        ("8", &[2930, 11_867, 27_014, 47_847, 75_152, 108_769, 148_178]),
    ],
};

/// Table 6.12.
pub(crate) static FRAME_MACHINE_PIPE: Grid = Grid {
    table: "6.12",
    title: "A frame on a single machine by pairs, pipes",
    unit: "us",
    axes: ["pairs", "side"],
    columns: &[100, 200, 300, 400, 500, 600, 700],
    rows: &[
        ("0", &[3420, 12_353, 32_267, 52_653, 86_687, 117_514, 175_065]),
        ("1", &[4030, 13_399, 32_684, 53_141, 90_701, 119_323, 177_204]),
        ("2", &[3746, 13_686, 33_138, 54_289, 91_995, 122_109, 182_296]),
        ("3", &[4234, 13_705, 33_516, 54_713, 94_095, 124_431, 185_870]),
        ("4", &[4387, 13_944, 34_042, 56_571, 95_657, 127_190, 189_502]),
        ("5", &[4208, 14_118, 34_515, 57_399, 98_632, 131_760, 194_653]),
        ("6", &[4581, 14_620, 34_951, 59_234, 100_573, 135_676, 199_830]),
        ("7", &[4652, 15_037, 35_729, 59_906, 103_035, 139_448, 205_886]),
        ("8", &[4599, 15_120, 36_186, 61_878, 105_466, 142_826, 211_646]),
    ],
};

/// Table 6.13.
pub(crate) static FRAME_MACHINE_SHARED: Grid = Grid {
    table: "6.13",
    title: "A frame on a single machine by pairs, shared memory, three slots",
    unit: "us",
    axes: ["pairs", "side"],
    columns: &[100, 200, 300, 400, 500, 600, 700],
    rows: &[
        ("0", &[3457, 14_539, 36_462, 73_862, 127_105, 182_598, 249_516]),
        ("1", &[3453, 14_604, 36_341, 73_995, 126_938, 182_240, 249_465]),
        ("2", &[3354, 14_294, 35_958, 73_397, 126_939, 182_196, 249_465]),
        ("3", &[3351, 14_320, 35_956, 73_345, 126_940, 182_200, 249_412]),
        ("4", &[3354, 14_284, 35_880, 73_323, 126_875, 182_153, 249_452]),
        ("5", &[3284, 14_232, 35_923, 73_474, 126_895, 182_186, 249_424]),
        ("6", &[3384, 14_106, 35_834, 73_369, 126_951, 182_197, 249_476]),
        ("7", &[3352, 14_302, 35_985, 73_280, 127_001, 182_235, 249_393]),
        ("8", &[3366, 14_233, 35_891, 73_357, 126_961, 182_161, 249_453]),
    ],
};

/// Table 6.14.
pub(crate) static SLOTS: Grid = Grid {
    table: "6.14",
    title: "A frame on a single machine by slots of shared memory, no pairs",
    unit: "us",
    axes: ["slots", "side"],
    columns: &[100, 200, 300, 400, 500, 600, 700],
    rows: &[
        ("1", &[1206, 4936, 14_041, 32_307, 45_471, 78_654, 106_673]),
        ("2", &[1210, 7064, 21_545, 37_435, 61_052, 82_642, 123_043]),
        ("3", &[1213, 8383, 24_550, 61_004, 122_869, 178_087, 248_269]),
        ("4", &[1216, 9201, 46_222, 110_494, 186_068, 254_234, 372_837]),
        ("5", &[1219, 11_522, 66_958, 147_838, 248_755, 360_942, 498_348]),
        ("6", &[1226, 21_258, 97_038, 184_979, 311_316, 440_049, 623_286]),
        ("7", &[1241, 38_465, 118_381, 228_818, 374_561, 543_835, 748_093]),
        ("8", &[1255, 50_711, 141_260, 268_043, 437_147, 625_666, 873_701]),
        ("9", &[2021, 59_535, 164_374, 309_114, 499_082, 727_716, 998_573]),
        ("10", &[1572, 68_111, 183_734, 352_250, 562_398, 812_175, 1_123_959]),
    ],
};

/// Table 6.4: pixels forwarded for a frame and the time between frames, VNC.
pub(crate) static VNC_FRAMES: Grid = Grid {
    table: "6.4",
    title: "Time between frames, VNC",
    unit: "us",
    axes: ["program", "pixels"],
    columns: &[55_480, 222_918, 297_620, 404_672, 627_935],
    rows: &[("vnc", &[44_500, 107_786, 127_290, 167_625, 246_812])],
};

/// Table 6.5: the dissertation's own driver, without and with compression.
pub(crate) static DRIVER_FRAMES: Grid = Grid {
    table: "6.5",
    title: "Time between frames, networked device driver",
    unit: "us",
    axes: ["program", "pixels"],
    columns: &[28_000, 66_000, 312_000, 420_000, 560_000, 789_504],
    rows: &[
        ("driver", &[7209, 18_040, 87_434, 132_071, 190_754, 542_916]),
        ("driver, compressed", &[11_598, 25_275, 105_541, 184_731, 285_813, 494_565]),
    ],
};

/// All grids in the dissertation's order.
#[cfg(test)]
static GRIDS: [&Grid; 13] = [
    &END_TO_END,
    &SINGLE_MACHINE,
    &VNC_FRAMES,
    &DRIVER_FRAMES,
    &SYSTEM_PIPE,
    &SYSTEM_SHARED,
    &MACHINE_PIPE,
    &MACHINE_SHARED,
    &FRAMES_PIPE,
    &FRAMES_SHARED,
    &FRAME_MACHINE_PIPE,
    &FRAME_MACHINE_SHARED,
    &SLOTS,
];

/// Table 6.3: throughput of the whole system.
pub(crate) const THROUGHPUT_MB_PER_S: [(&str, f64); 2] = [("pipe", 10.5004), ("shm", 11.0023)];
/// Section 6.3: throughput of `rcp` over the same network, the dissertation's own limit.
pub(crate) const NETWORK_MB_PER_S: f64 = 11.3;
/// Section 6.1: round trip of `ping` over that network.
pub(crate) const PING_US: f64 = 235.0;

/// Section 6.4, figure 6.6: times of the three parts of a motion update's path.
pub(crate) const DEVICE_US: [(&str, f64); 3] =
    [("device side", 36.0), ("network", 380.0), ("application side", 17.0)];

/// A statistic of the differences of inter-message times in section 6.7.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Statistic {
    Mean,
    Deviation,
}

impl Statistic {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Statistic::Mean => "mean",
            Statistic::Deviation => "standard deviation",
        }
    }
}

/// Sections 6.7.1 and 6.7.2: the values that the text gives, by jitter (ms), pair and statistic, ms. Figures 6.12 and
/// 6.14 have more, but only as pictures.
pub(crate) const JITTER_MS: [(u64, &str, Statistic, f64); 4] = [
    (5, "none", Statistic::Mean, 3.6),
    (50, "none", Statistic::Deviation, 12.3),
    (100, "none", Statistic::Mean, 25.6),
    (200, "none", Statistic::Mean, 28.8),
];
/// The upper bounds that the text gives.
pub(crate) const JITTER_BELOW: [(u64, &str, Statistic, f64); 14] = [
    (5, "buffer", Statistic::Mean, 0.1),
    (10, "buffer", Statistic::Mean, 0.1),
    (25, "buffer", Statistic::Mean, 0.1),
    (50, "buffer", Statistic::Mean, 0.1),
    (200, "buffer", Statistic::Mean, 1.5),
    (5, "bundle", Statistic::Mean, 1.0),
    (10, "bundle", Statistic::Mean, 1.0),
    (25, "bundle", Statistic::Mean, 1.0),
    (50, "bundle", Statistic::Mean, 1.0),
    (100, "bundle", Statistic::Mean, 1.0),
    (5, "bundle", Statistic::Deviation, 1.0),
    (10, "bundle", Statistic::Deviation, 1.0),
    (25, "bundle", Statistic::Deviation, 1.0),
    (50, "bundle", Statistic::Deviation, 1.0),
];

/// Contradictions between the dissertation's figures, by section.
pub(crate) const REMARKS: [(&str, &str); 6] = [
    (
        "6.1",
        "The text fits a line of 0.17 us a character to table 6.1. The table itself has 0.089 (91,356 us over 1,023,000 \
         characters), the network's time; 0.17 fits the round trip before it was halved.",
    ),
    ("6.1", "The text gives a ping of 235 us here and of 226 us in section 6.8.1."),
    (
        "6.8.1",
        "Table 6.6 grows by 5.7 % of its first row per pair (5.0 % of the previous row); the text says 6.6 %. Table 6.7 \
         grows by 2.0 %; the text says 1.9 %. Table 6.7 is not monotone: 4 pairs are 16 % faster than 3 at 50,000 \
         characters, 6 pairs 16 % faster than 5 at 5,000 and 11 % at 100,000.",
    ),
    (
        "6.9.1",
        "The time of a frame without pairs, times 11.3 MB/s, is 2.9 to 3.8 bytes a pixel in tables 6.10 and 6.11. Four bytes \
         a pixel would be 15.5 MB/s at 100 pixels, more than 100 Mbit/s carry; three are 11.6 MB/s. So the frames of \
         this measurement have three bytes a pixel.",
    ),
    (
        "6.9.2",
        "Table 6.14 with three slots and table 6.13 without pairs claim to measure the same, but differ (1,213 and 3,457 us at \
         100 pixels; 8,383 and 14,539 at 200). From 500 pixels they agree within 4 %.",
    ),
    ("6.9.2", "In table 6.14, nine slots are slower than ten at 100 pixels (2,021 and 1,572 us)."),
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how much larger one row is than another in per cent, averaged over all columns.
    fn average(more: &Grid, more_row: &str, less: &Grid, less_row: &str) -> f64 {
        let growth = |column: &u64| {
            let (more, less) = (more.at(more_row, *column).unwrap(), less.at(less_row, *column).unwrap());
            100.0 * (more / less - 1.0)
        };
        more.columns.iter().map(growth).sum::<f64>() / more.columns.len() as f64
    }

    fn assert_near(ours: f64, text: f64) {
        assert!((ours - text).abs() < 0.03, "{ours} from the table, {text} in the text");
    }

    #[test]
    fn every_row_is_whole_and_columns_rise() {
        for grid in GRIDS {
            assert!(grid.columns.is_sorted(), "{}", grid.table);
            for (label, figures) in grid.rows {
                assert_eq!(figures.len(), grid.columns.len(), "{} {label}", grid.table);
                // The figures of small messages are noisy.
                assert!(
                    figures.iter().zip(&figures[1..]).all(|(a, b)| *b as f64 > 0.7 * *a as f64),
                    "{}",
                    grid.table
                );
            }
        }
    }

    #[test]
    fn without_pairs_the_tables_of_pairs_are_the_first_tables() {
        for (grid, by_pairs, link) in [
            (&END_TO_END, &SYSTEM_PIPE, "pipe"),
            (&END_TO_END, &SYSTEM_SHARED, "shm"),
            (&SINGLE_MACHINE, &MACHINE_PIPE, "pipe"),
            (&SINGLE_MACHINE, &MACHINE_SHARED, "shm"),
        ] {
            for column in grid.columns {
                assert_eq!(grid.at(link, *column), by_pairs.at("0", *column), "{} {column}", by_pairs.table);
            }
        }
    }

    #[test]
    fn the_tables_give_the_percentages_of_the_text() {
        // Sections 6.9.1 (the first pair; pipes over shared memory) and 6.8.1 (the same of the whole system).
        assert_near(average(&FRAMES_PIPE, "1", &FRAMES_PIPE, "0"), 8.91);
        assert_near(average(&FRAMES_SHARED, "1", &FRAMES_SHARED, "0"), 5.57);
        assert_near(average(&FRAMES_PIPE, "0", &FRAMES_SHARED, "0"), 6.72);
        assert_near(average(&SYSTEM_PIPE, "0", &SYSTEM_SHARED, "0"), -1.09);
        // The remarks on section 6.8.1.
        assert_near(average(&SYSTEM_PIPE, "6", &SYSTEM_PIPE, "0") / 6.0, 5.67);
        assert_near(average(&SYSTEM_SHARED, "6", &SYSTEM_SHARED, "0") / 6.0, 1.96);
    }

    #[test]
    fn frames_have_three_bytes_a_pixel() {
        let bytes_a_pixel = |side: u64| {
            let most_us = FRAMES_PIPE.at("0", side).unwrap().max(FRAMES_SHARED.at("0", side).unwrap());
            let least_us = FRAMES_PIPE.at("0", side).unwrap().min(FRAMES_SHARED.at("0", side).unwrap());
            [least_us, most_us].map(|us| us * NETWORK_MB_PER_S / (side * side) as f64)
        };
        for side in FRAMES_PIPE.columns {
            let [least, most] = bytes_a_pixel(*side);
            assert!(least > 2.5 && most < 4.0, "{side}: {least} to {most}");
        }
    }
}
