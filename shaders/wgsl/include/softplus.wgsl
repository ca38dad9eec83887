// ln(1 + e^x). Where e^x is small, 1 + e^x would round most of it away: its series. Far above 20, where e^x overflows, both are equal.
fn softplus(x: f32) -> f32 {
    let power = exp(min(x, 20.0));
    let series = power * (1.0 - power * (0.5 - power * 0.33333334));
    return select(select(log(1.0 + power), series, power < 0.01), x, x > 20.0);
}
