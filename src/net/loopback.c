#include "net/world.h"
