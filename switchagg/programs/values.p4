// ELEMENTS values, cut into blocks of LANES: one block a pass. P4 has no loop over fields, so macros write them out:
// BLOCKS(F) is F(0, 32) F(1, 32) … F(k, rest); EACH(n, F, block) is F(block, 0) … F(block, n - 1).

#ifndef ELEMENTS
#define ELEMENTS 32
#endif
#define LANES 32
#define PASSES ((ELEMENTS + LANES - 1) / LANES)

#if ELEMENTS < 1 || ELEMENTS > 256
#error ELEMENTS is 1 to 256
#endif

// The lanes of the last block, as a literal: macros paste it.
#if ELEMENTS <= 32
#define REST ELEMENTS
#elif ELEMENTS % LANES == 1
#define REST 1
#elif ELEMENTS % LANES == 2
#define REST 2
#elif ELEMENTS % LANES == 3
#define REST 3
#elif ELEMENTS % LANES == 4
#define REST 4
#elif ELEMENTS % LANES == 5
#define REST 5
#elif ELEMENTS % LANES == 6
#define REST 6
#elif ELEMENTS % LANES == 7
#define REST 7
#elif ELEMENTS % LANES == 8
#define REST 8
#elif ELEMENTS % LANES == 9
#define REST 9
#elif ELEMENTS % LANES == 10
#define REST 10
#elif ELEMENTS % LANES == 11
#define REST 11
#elif ELEMENTS % LANES == 12
#define REST 12
#elif ELEMENTS % LANES == 13
#define REST 13
#elif ELEMENTS % LANES == 14
#define REST 14
#elif ELEMENTS % LANES == 15
#define REST 15
#elif ELEMENTS % LANES == 16
#define REST 16
#elif ELEMENTS % LANES == 17
#define REST 17
#elif ELEMENTS % LANES == 18
#define REST 18
#elif ELEMENTS % LANES == 19
#define REST 19
#elif ELEMENTS % LANES == 20
#define REST 20
#elif ELEMENTS % LANES == 21
#define REST 21
#elif ELEMENTS % LANES == 22
#define REST 22
#elif ELEMENTS % LANES == 23
#define REST 23
#elif ELEMENTS % LANES == 24
#define REST 24
#elif ELEMENTS % LANES == 25
#define REST 25
#elif ELEMENTS % LANES == 26
#define REST 26
#elif ELEMENTS % LANES == 27
#define REST 27
#elif ELEMENTS % LANES == 28
#define REST 28
#elif ELEMENTS % LANES == 29
#define REST 29
#elif ELEMENTS % LANES == 30
#define REST 30
#elif ELEMENTS % LANES == 31
#define REST 31
#else
#define REST 32
#endif

#if ELEMENTS > 224
#define BLOCKS(F) F(0, 32) F(1, 32) F(2, 32) F(3, 32) F(4, 32) F(5, 32) F(6, 32) LAST(F, 7, REST)
#elif ELEMENTS > 192
#define BLOCKS(F) F(0, 32) F(1, 32) F(2, 32) F(3, 32) F(4, 32) F(5, 32) LAST(F, 6, REST)
#elif ELEMENTS > 160
#define BLOCKS(F) F(0, 32) F(1, 32) F(2, 32) F(3, 32) F(4, 32) LAST(F, 5, REST)
#elif ELEMENTS > 128
#define BLOCKS(F) F(0, 32) F(1, 32) F(2, 32) F(3, 32) LAST(F, 4, REST)
#elif ELEMENTS > 96
#define BLOCKS(F) F(0, 32) F(1, 32) F(2, 32) LAST(F, 3, REST)
#elif ELEMENTS > 64
#define BLOCKS(F) F(0, 32) F(1, 32) LAST(F, 2, REST)
#elif ELEMENTS > 32
#define BLOCKS(F) F(0, 32) LAST(F, 1, REST)
#elif ELEMENTS > 0
#define BLOCKS(F) LAST(F, 0, REST)
#endif
#define LAST(F, block, lanes) F(block, lanes)

#define EACH(n, F, block) EACH_OF(n, F, block)
#define EACH_OF(n, F, block) EACH_##n(F, block)
#define EACH_1(F, b) F(b, 0)
#define EACH_2(F, b) F(b, 0) F(b, 1)
#define EACH_3(F, b) F(b, 0) F(b, 1) F(b, 2)
#define EACH_4(F, b) F(b, 0) F(b, 1) F(b, 2) F(b, 3)
#define EACH_5(F, b) F(b, 0) F(b, 1) F(b, 2) F(b, 3) F(b, 4)
#define EACH_6(F, b) F(b, 0) F(b, 1) F(b, 2) F(b, 3) F(b, 4) F(b, 5)
#define EACH_7(F, b) F(b, 0) F(b, 1) F(b, 2) F(b, 3) F(b, 4) F(b, 5) F(b, 6)
#define EACH_8(F, b) F(b, 0) F(b, 1) F(b, 2) F(b, 3) F(b, 4) F(b, 5) F(b, 6) F(b, 7)
#define EACH_9(F, b) EACH_8(F, b) F(b, 8)
#define EACH_10(F, b) EACH_8(F, b) F(b, 8) F(b, 9)
#define EACH_11(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10)
#define EACH_12(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10) F(b, 11)
#define EACH_13(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10) F(b, 11) F(b, 12)
#define EACH_14(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10) F(b, 11) F(b, 12) F(b, 13)
#define EACH_15(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10) F(b, 11) F(b, 12) F(b, 13) F(b, 14)
#define EACH_16(F, b) EACH_8(F, b) F(b, 8) F(b, 9) F(b, 10) F(b, 11) F(b, 12) F(b, 13) F(b, 14) F(b, 15)
#define EACH_17(F, b) EACH_16(F, b) F(b, 16)
#define EACH_18(F, b) EACH_16(F, b) F(b, 16) F(b, 17)
#define EACH_19(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18)
#define EACH_20(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18) F(b, 19)
#define EACH_21(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18) F(b, 19) F(b, 20)
#define EACH_22(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18) F(b, 19) F(b, 20) F(b, 21)
#define EACH_23(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18) F(b, 19) F(b, 20) F(b, 21) F(b, 22)
#define EACH_24(F, b) EACH_16(F, b) F(b, 16) F(b, 17) F(b, 18) F(b, 19) F(b, 20) F(b, 21) F(b, 22) F(b, 23)
#define EACH_25(F, b) EACH_24(F, b) F(b, 24)
#define EACH_26(F, b) EACH_24(F, b) F(b, 24) F(b, 25)
#define EACH_27(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26)
#define EACH_28(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26) F(b, 27)
#define EACH_29(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26) F(b, 27) F(b, 28)
#define EACH_30(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26) F(b, 27) F(b, 28) F(b, 29)
#define EACH_31(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26) F(b, 27) F(b, 28) F(b, 29) F(b, 30)
#define EACH_32(F, b) EACH_24(F, b) F(b, 24) F(b, 25) F(b, 26) F(b, 27) F(b, 28) F(b, 29) F(b, 30) F(b, 31)
