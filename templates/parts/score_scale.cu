//%% What is multiplied into the exponent of 2: exp2(v * EXP2_SCALE - reference), where v is the product of Q and K or
//%% what transform_scores makes of it.
//% local attention = library("attention")
constexpr float EXP2_SCALE = $(f32(score.factor * attention.log2e)); // $(("%g"):format(score.factor)) log2(e)
