//%% What a product is multiplied with on its way to the exponent.
//% local attention = library("attention")
//% if variant.softcap > 0 then
constexpr float SOFTCAP = $(f32(variant.softcap));
constexpr float SCALE = $(f32(variant.scale / variant.softcap)); // scale / softcap
//% elseif attention.raw_scores(variant) then
constexpr float EXP2_SCALE = $(f32(variant.scale * attention.log2e)); // scale log2(e)
//% else
constexpr float SCALE = $(f32(variant.scale));
//% end
