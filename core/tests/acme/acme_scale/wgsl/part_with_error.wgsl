fn one() -> f32 {
  return no_such_name;
}
