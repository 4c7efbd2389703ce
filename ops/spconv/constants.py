"""`spconv.constants`: the switches that programs set. None has an effect here."""

SPCONV_USE_DIRECT_TABLE = True
SPCONV_ALLOW_TF32 = False  # torch.set_float32_matmul_precision decides
SPCONV_DO_SORT = True
SPCONV_CPP_INDICE_PAIRS = True
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_CPP_GEMM = True
SPCONV_FX_TRACE_MODE = False
SPCONV_DIRECT_TABLE_HASH_SIZE_SCALE = 1.1
ALL_WEIGHT_IS_KRSC = True
FILTER_HWIO = False
SAVED_WEIGHT_LAYOUT = ""
PACKAGE_NAME = "spconv"
