//go:build !linux && !darwin

package doctor

import "errors"

func roomOf(string) (free uint64, memory bool, err error) { return 0, false, errors.ErrUnsupported }
