//! The kernel's structures (`linux/videodev2.h`), flattened where it has unions, on 64-bit machines.

use std::mem::size_of;

pub(super) const BUFFER_TYPE_CAPTURE: u32 = 1;
pub(super) const BUFFER_TYPE_OUTPUT: u32 = 2;
pub(super) const MEMORY_MMAP: u32 = 1;

/// `struct v4l2_capability`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelCapability {
    pub driver: [u8; 16],
    pub card: [u8; 32],
    pub bus_info: [u8; 32],
    pub version: u32,
    pub capabilities: u32,
    pub device_caps: u32,
    pub reserved: [u32; 3],
}

/// `struct v4l2_fmtdesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelFormatName {
    pub index: u32,
    pub kind: u32,
    pub flags: u32,
    pub description: [u8; 32],
    pub fourcc: [u8; 4],
    pub mbus_code: u32,
    pub reserved: [u32; 3],
}

/// `struct v4l2_pix_format`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelPixels {
    pub width: u32,
    pub height: u32,
    pub fourcc: [u8; 4],
    pub field: u32,
    pub stride: u32,
    pub size_bytes: u32,
    pub colour: [u32; 6],
}

/// `struct v4l2_format` with `struct v4l2_pix_format` in its union, which has the alignment of a pointer.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct KernelFormat {
    pub kind: u32,
    pub padding: u32,
    pub pixels: KernelPixels,
    pub rest: [u8; 200 - size_of::<KernelPixels>()],
}

/// `struct v4l2_streamparm` with `struct v4l2_captureparm` or `struct v4l2_outputparm`, which start with the
/// same fields.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelStream {
    pub kind: u32,
    pub capability: u32,
    pub mode: u32,
    pub interval: [u32; 2],
    pub rest: [u8; 184],
}

/// `struct v4l2_requestbuffers`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelRequest {
    pub count: u32,
    pub kind: u32,
    pub memory: u32,
    pub capabilities: u32,
    pub flags: u32,
}

/// `struct v4l2_buffer`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelBuffer {
    pub index: u32,
    pub kind: u32,
    pub used_bytes: u32,
    pub flags: u32,
    pub field: u32,
    pub padding: u32,
    pub seconds: i64,
    pub microseconds: i64,
    pub timecode: [u32; 4],
    pub sequence: u32,
    pub memory: u32,
    /// A union; for mapped buffers its first half is the offset.
    pub offset: u32,
    pub offset_rest: u32,
    pub length: u32,
    pub reserved: [u32; 3],
}

/// `struct v4l2_control`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelControl {
    pub id: u32,
    pub value: i32,
}

/// `struct v4l2_ext_control`, which is packed.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(super) struct KernelWideControl {
    pub id: u32,
    pub size: u32,
    pub reserved: u32,
    pub value: i64,
}

/// `struct v4l2_ext_controls`.
#[repr(C)]
pub(super) struct KernelWideControls {
    pub which: u32,
    pub count: u32,
    pub error_index: u32,
    pub request: i32,
    pub reserved: u32,
    pub controls: *mut KernelWideControl,
}

/// `struct v4l2_query_ext_ctrl`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelQuery {
    pub id: u32,
    pub kind: u32,
    pub name: [u8; 32],
    pub minimum: i64,
    pub maximum: i64,
    pub step: u64,
    pub default: i64,
    pub flags: u32,
    pub element_bytes: u32,
    pub elements: u32,
    pub dimension_count: u32,
    pub dimensions: [u32; 4],
    pub reserved: [u32; 32],
}

/// `struct v4l2_querymenu`, which is packed. It starts with the name, or the value in a menu of numbers.
#[repr(C, packed)]
#[derive(Clone, Copy)]
pub(super) struct KernelMenu {
    pub id: u32,
    pub index: u32,
    pub name: [u8; 32],
    pub reserved: u32,
}

/// `struct v4l2_event_subscription`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelSubscription {
    pub kind: u32,
    pub id: u32,
    pub flags: u32,
    pub reserved: [u32; 5],
}

/// `struct v4l2_event`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct KernelEvent {
    pub kind: u32,
    pub padding: u32,
    pub content: [u32; 16],
    pub pending: u32,
    pub sequence: u32,
    pub time: [i64; 2],
    pub id: u32,
    pub reserved: [u32; 8],
    pub end: u32,
}

/// A structure that may consist of zero bytes.
pub(super) trait Plain: Copy {
    fn zeroed() -> Self {
        // SAFETY: the implementors below consist of numbers, for which zero is valid.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($name:ident: $bytes:literal),*) => {
        $(impl Plain for $name {}
        const _: () = assert!(size_of::<$name>() == $bytes);)*
    };
}

// The sizes that a C program prints on x86-64; aarch64 has the same.
#[cfg(target_pointer_width = "64")]
plain! {
    KernelCapability: 104, KernelFormatName: 64, KernelFormat: 208,
    KernelStream: 204, KernelRequest: 20, KernelBuffer: 88, KernelControl: 8, KernelQuery: 232, KernelMenu: 44,
    KernelSubscription: 32, KernelEvent: 136
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::offset_of;

    /// The offsets that a C program prints.
    #[test]
    fn fields_have_the_kernels_offsets() {
        let places = [
            (offset_of!(KernelFormat, pixels), 8),
            (offset_of!(KernelStream, interval), 12),
            (offset_of!(KernelBuffer, seconds), 24),
            (offset_of!(KernelBuffer, sequence), 56),
            (offset_of!(KernelBuffer, memory), 60),
            (offset_of!(KernelBuffer, offset), 64),
            (offset_of!(KernelBuffer, length), 72),
            (offset_of!(KernelQuery, minimum), 40),
            (offset_of!(KernelQuery, default), 64),
            (offset_of!(KernelQuery, flags), 72),
            (offset_of!(KernelMenu, name), 8),
            (offset_of!(KernelWideControls, controls), 24),
            (offset_of!(KernelEvent, content), 8),
            (offset_of!(KernelEvent, pending), 72),
            (offset_of!(KernelEvent, time), 80),
            (offset_of!(KernelEvent, id), 96),
        ];
        for (number, (ours, theirs)) in places.into_iter().enumerate() {
            assert_eq!(ours, theirs, "place {number}");
        }
        assert_eq!((size_of::<KernelWideControl>(), size_of::<KernelWideControls>()), (20, 32));
    }
}
