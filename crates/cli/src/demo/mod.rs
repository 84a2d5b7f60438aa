pub(crate) fn demo(_: &crate::arguments::Demo) -> Result<(), crate::output::Failure> {
    Ok(())
}
