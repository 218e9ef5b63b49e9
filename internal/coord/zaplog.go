package coord

import (
	"context"
	"log/slog"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZapLogger returns a zap logger, which the embedded etcd insists on, that writes warnings and worse to log.
// Where etcd would end the process it panics instead, so that a broken data directory can become an error. Once closing
// is closed nothing is written: etcd reports each listener that it closes itself as an error.
func newZapLogger(log *slog.Logger, closing <-chan struct{}) *zap.Logger {
	return zap.New(zapToSlog{log, closing}, zap.WithFatalHook(zapcore.WriteThenPanic))
}

type zapToSlog struct {
	log     *slog.Logger
	closing <-chan struct{}
}

func (z zapToSlog) Enabled(level zapcore.Level) bool { return level >= zapcore.WarnLevel }

func (z zapToSlog) With(fields []zapcore.Field) zapcore.Core {
	return zapToSlog{z.log.With(attrs(fields)...), z.closing}
}

func (z zapToSlog) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if z.Enabled(e.Level) {
		return ce.AddCore(e, z)
	}
	return ce
}

func (z zapToSlog) Write(e zapcore.Entry, fields []zapcore.Field) error {
	select {
	case <-z.closing:
		return nil
	default:
	}
	level := slog.LevelWarn
	if e.Level >= zapcore.ErrorLevel {
		level = slog.LevelError
	}
	z.log.Log(context.Background(), level, "etcd: "+e.Message, attrs(fields)...)
	return nil
}

func (z zapToSlog) Sync() error { return nil }

func attrs(fields []zapcore.Field) []any {
	enc := zapcore.NewMapObjectEncoder()
	out := make([]any, 0, len(fields))
	for _, f := range fields {
		f.AddTo(enc)
	}
	for key, value := range enc.Fields {
		out = append(out, slog.Any(key, value))
	}
	return out
}
