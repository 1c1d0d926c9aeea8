/* image.c: what is common to the images of all compilers. */
#include <stdlib.h>

#include "device.h"

void image_free(device_image *image) {
  free(image->bytes);
  free(image->log);
  *image = (device_image){0};
}
