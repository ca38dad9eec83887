// ln(1 + e^x). If e^x is small, a series avoids the rounding of 1 + e^x. Far above 20, where e^x
// overflows, the result is x.
fn softplus(x: f32) -> f32 {
    let power = exp(min(x, 20.0));
    let series = power * (1.0 - power * (0.5 - power * 0.33333334));
    return select(select(log(1.0 + power), series, power < 0.01), x, x > 20.0);
}
