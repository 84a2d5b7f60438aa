//! Parameters of PipeWire's streams, as the bytes (pods) that its library takes.

use ::pipewire::spa::pod::serialize::PodSerializer;
use ::pipewire::spa::pod::{ChoiceValue, Object, Property, Value};
use ::pipewire::spa::sys as spa;
use ::pipewire::spa::utils::{Choice, ChoiceEnum, ChoiceFlags, SpaTypes};
use std::io;

/// Returns the bytes of a parameter of this kind with its properties.
pub(crate) fn serialize(kind: SpaTypes, id: u32, properties: Vec<Property>) -> Vec<u8> {
    let object = Value::Object(Object { type_: kind.as_raw(), id, properties });
    let serialized = PodSerializer::serialize(io::Cursor::new(Vec::new()), &object);
    serialized.map(|(cursor, _)| cursor.into_inner()).unwrap_or_default()
}

/// Returns the parameter for buffers of one block each, in memory that this process can read, with further properties. `counts`:
/// the number of buffers that is asked for, the least and the most.
pub(crate) fn buffers(counts: (i32, i32, i32), further: impl IntoIterator<Item = Property>) -> Vec<u8> {
    let choice = |choice| Value::Choice(ChoiceValue::Int(Choice(ChoiceFlags::empty(), choice)));
    let (default, min, max) = counts;
    let memory = 1 << spa::SPA_DATA_MemFd | 1 << spa::SPA_DATA_MemPtr;
    let mut properties = vec![
        Property::new(spa::SPA_PARAM_BUFFERS_buffers, choice(ChoiceEnum::Range { default, min, max })),
        Property::new(spa::SPA_PARAM_BUFFERS_blocks, Value::Int(1)),
        Property::new(
            spa::SPA_PARAM_BUFFERS_dataType,
            choice(ChoiceEnum::Flags { default: memory, flags: Vec::new() }),
        ),
    ];
    properties.extend(further);
    serialize(SpaTypes::ObjectParamBuffers, spa::SPA_PARAM_Buffers, properties)
}
