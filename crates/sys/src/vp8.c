/* VP8 by libvpx. The layouts of libvpx's structures differ between its versions; only this file knows them, and it is
 * compiled against the headers of the library that it is linked with. `vp8.rs` declares the same functions. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vpx/vp8cx.h>
#include <vpx/vp8dx.h>
#include <vpx/vpx_decoder.h>
#include <vpx/vpx_encoder.h>

/* Ticks a second of the times of pictures. */
#define TICKS_HZ 90000
/* Bounds of the quantizer: 0 is lossless in effect, 63 the coarsest. */
#define QUANTIZER_MIN 2
#define QUANTIZER_MAX 60
/* Share of a picture's time that the encoder may use: (16 - SPEED) / 16. libvpx measures itself and simplifies its search. */
#define SPEED 10
/* The sizes of libvpx's model of the receiver's buffer, milliseconds: one picture may exceed its share only by a little. */
#define BUFFER_MS 300
#define BUFFER_INITIAL_MS 150
#define BUFFER_OPTIMAL_MS 180
/* Largest key picture, percent of a picture's share of the rate. */
#define KEY_MAX_PERCENT 450

/* libvpx asks for the number of processors when it makes a codec, although the number of threads is given. The C library
 * opens files to answer, and a locked worker may open none: the sandbox would refuse and report it. So this program answers
 * libvpx itself. Its definition precedes that of the C library for every library, and passes all other questions on. */
extern long __sysconf(int name);
static _Thread_local int is_making_codec;

long sysconf(int name) { return is_making_codec && name == _SC_NPROCESSORS_ONLN ? 1 : __sysconf(name); }

struct encoder {
    vpx_codec_ctx_t codec;
    vpx_codec_enc_cfg_t config;
};

/* Three planes, Y, Cb and Cr. */
struct planes {
    const uint8_t *plane[3];
    uint32_t stride[3];
    uint32_t width, height;
};

void outboard_vp8_encoder_free(struct encoder *encoder) {
    vpx_codec_destroy(&encoder->codec);
    free(encoder);
}

struct encoder *outboard_vp8_encoder_new(uint32_t width, uint32_t height, uint32_t rate_kbit) {
    struct encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return NULL;
    vpx_codec_enc_cfg_t *config = &encoder->config;
    if (vpx_codec_enc_config_default(vpx_codec_vp8_cx(), config, 0)) {
        free(encoder);
        return NULL;
    }
    config->g_w = width;
    config->g_h = height;
    config->g_timebase.num = 1;
    config->g_timebase.den = TICKS_HZ;
    config->g_threads = 1;
    config->g_pass = VPX_RC_ONE_PASS;
    config->g_lag_in_frames = 0;
    /* The other half decodes every picture, in order, so none has to be independent of a lost one. */
    config->g_error_resilient = 0;
    config->rc_end_usage = VPX_CBR;
    config->rc_target_bitrate = rate_kbit;
    config->rc_min_quantizer = QUANTIZER_MIN;
    config->rc_max_quantizer = QUANTIZER_MAX;
    config->rc_dropframe_thresh = 0;
    config->rc_resize_allowed = 0;
    config->rc_undershoot_pct = 100;
    config->rc_overshoot_pct = 15;
    config->rc_buf_sz = BUFFER_MS;
    config->rc_buf_initial_sz = BUFFER_INITIAL_MS;
    config->rc_buf_optimal_sz = BUFFER_OPTIMAL_MS;
    config->kf_mode = VPX_KF_DISABLED;
    is_making_codec = 1;
    vpx_codec_err_t error = vpx_codec_enc_init(&encoder->codec, vpx_codec_vp8_cx(), config, 0);
    is_making_codec = 0;
    if (error) {
        free(encoder);
        return NULL;
    }
    if (vpx_codec_control(&encoder->codec, VP8E_SET_CPUUSED, SPEED) ||
        vpx_codec_control(&encoder->codec, VP8E_SET_STATIC_THRESHOLD, 1) ||
        vpx_codec_control(&encoder->codec, VP8E_SET_TOKEN_PARTITIONS, VP8_ONE_TOKENPARTITION) ||
        vpx_codec_control(&encoder->codec, VP8E_SET_NOISE_SENSITIVITY, 0) ||
        vpx_codec_control(&encoder->codec, VP8E_SET_MAX_INTRA_BITRATE_PCT, KEY_MAX_PERCENT)) {
        outboard_vp8_encoder_free(encoder);
        return NULL;
    }
    return encoder;
}

int outboard_vp8_encoder_set_rate(struct encoder *encoder, uint32_t rate_kbit) {
    encoder->config.rc_target_bitrate = rate_kbit;
    return vpx_codec_enc_config_set(&encoder->codec, &encoder->config);
}

/* Returns libvpx's error, or 0. The encoded bytes are valid until the next call for this encoder. */
int outboard_vp8_encode(struct encoder *encoder, const struct planes *picture, int64_t at_ticks, uint32_t ticks,
                        int is_key, const uint8_t **bytes, size_t *length, int *is_key_made) {
    vpx_image_t image;
    /* The planes replace those that this call computes. */
    if (!vpx_img_wrap(&image, VPX_IMG_FMT_I420, picture->width, picture->height, 1, (uint8_t *)picture->plane[0]))
        return VPX_CODEC_INVALID_PARAM;
    for (int number = 0; number < 3; number++) {
        image.planes[number] = (uint8_t *)picture->plane[number];
        image.stride[number] = (int)picture->stride[number];
    }
    int error = vpx_codec_encode(&encoder->codec, &image, at_ticks, ticks, is_key ? VPX_EFLAG_FORCE_KF : 0,
                                 VPX_DL_REALTIME);
    if (error) return error;
    vpx_codec_iter_t iterator = NULL;
    const vpx_codec_cx_pkt_t *packet;
    *length = 0;
    while ((packet = vpx_codec_get_cx_data(&encoder->codec, &iterator))) {
        if (packet->kind != VPX_CODEC_CX_FRAME_PKT) continue;
        *bytes = packet->data.frame.buf;
        *length = packet->data.frame.sz;
        *is_key_made = (packet->data.frame.flags & VPX_FRAME_IS_KEY) != 0;
    }
    return *length ? 0 : VPX_CODEC_ERROR;
}

vpx_codec_ctx_t *outboard_vp8_decoder_new(void) {
    vpx_codec_ctx_t *decoder = calloc(1, sizeof *decoder);
    vpx_codec_dec_cfg_t config = {.threads = 1};
    if (decoder && vpx_codec_dec_init(decoder, vpx_codec_vp8_dx(), &config, 0)) {
        free(decoder);
        return NULL;
    }
    return decoder;
}

void outboard_vp8_decoder_free(vpx_codec_ctx_t *decoder) {
    vpx_codec_destroy(decoder);
    free(decoder);
}

/* Reads the size of a key picture; 0 by 0 for any other. Returns libvpx's error, or 0. */
int outboard_vp8_key_size(const uint8_t *bytes, uint32_t length, uint32_t *width, uint32_t *height) {
    vpx_codec_stream_info_t info;
    memset(&info, 0, sizeof info);
    info.sz = sizeof info;
    int error = vpx_codec_peek_stream_info(vpx_codec_vp8_dx(), bytes, length, &info);
    *width = info.is_kf ? info.w : 0;
    *height = info.is_kf ? info.h : 0;
    /* The library reports a picture that is not a key picture as unsupported, because it has no size. */
    return error == VPX_CODEC_UNSUP_BITSTREAM && length >= 3 && (bytes[0] & 1) ? 0 : error;
}

/* Returns libvpx's error, or 0. The planes are valid until the next call for this decoder. */
int outboard_vp8_decode(vpx_codec_ctx_t *decoder, const uint8_t *bytes, uint32_t length, struct planes *picture) {
    /* The library makes its decoder with the first picture. */
    is_making_codec = 1;
    int error = vpx_codec_decode(decoder, bytes, length, NULL, 0);
    is_making_codec = 0;
    if (error) return error;
    vpx_codec_iter_t iterator = NULL;
    vpx_image_t *image = vpx_codec_get_frame(decoder, &iterator);
    int is_corrupted = 0;
    if (!image || image->fmt != VPX_IMG_FMT_I420) return VPX_CODEC_ERROR;
    if (vpx_codec_control(decoder, VP8D_GET_FRAME_CORRUPTED, &is_corrupted) || is_corrupted)
        return VPX_CODEC_CORRUPT_FRAME;
    for (int number = 0; number < 3; number++) {
        if (image->stride[number] <= 0) return VPX_CODEC_ERROR;
        picture->plane[number] = image->planes[number];
        picture->stride[number] = (uint32_t)image->stride[number];
    }
    picture->width = image->d_w;
    picture->height = image->d_h;
    return 0;
}

const char *outboard_vpx_error(int error) { return vpx_codec_err_to_string((vpx_codec_err_t)error); }
