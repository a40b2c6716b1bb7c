"""Face fusion: the GAN of generator and discriminator, its settings, validation and export."""
