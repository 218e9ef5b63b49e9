//go:build !race

package bubble

func alone() (end func()) { return func() {} }
